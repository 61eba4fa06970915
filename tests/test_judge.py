from __future__ import annotations

import math

import pytest
import torch

from kerncfg.evidence.judge import Difference, Limits, judge, judge_rows, number, relative_error

THRESHOLDS = {
    "float64": {"slack": 8.0, "floor": 1.5e-14, "gain": 1.5e-14, "share": 1.0},
    "float32": {"slack": 8.0, "floor": 2.0e-06, "gain": 2.0e-06, "share": 1.0},
    "float16": {"slack": 8.0, "floor": 2.0e-03, "gain": 6.0e-05, "share": 1.0},
    "bfloat16": {"slack": 8.0, "floor": 1.6e-02, "gain": 5.0e-04, "share": 1.0},
}
HALVES = [torch.bfloat16, torch.float16]
DTYPES = [torch.float32, *HALVES]


def truth(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def judged(original: torch.Tensor, kernel: torch.Tensor, reference: torch.Tensor | None) -> Difference:
    return judge("output", original, kernel, reference, THRESHOLDS)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_the_same_values_pass_whatever_the_reference_says(dtype: torch.dtype) -> None:
    values = truth(4, 32).to(dtype)
    found = judged(values, values.clone(), truth(4, 32) + 3)
    assert found.passed
    assert (found.max_abs, found.max_rel, found.identical, found.within) == (0, 0, 1, 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_rounding_more_than_the_original_passes(dtype: torch.dtype) -> None:
    exact = truth(64, 64)
    kernel = ((exact * 1.7).to(dtype).double() / 1.7).to(dtype)
    assert judged(exact.to(dtype), kernel, exact).passed


@pytest.mark.parametrize("dtype", DTYPES)
def test_three_percent_too_much_fails(dtype: torch.dtype) -> None:
    exact = truth(64, 64)
    found = judged(exact.to(dtype), (exact * 1.03).to(dtype), exact)
    assert not found.passed
    assert found.gain == pytest.approx(0.03, abs=1e-3)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_factor_below_one_rounding_of_each_value_fails(dtype: torch.dtype) -> None:
    exact = truth(128, 256)
    found = judged(exact.to(dtype), (exact * 1.0012).to(dtype), exact)
    assert found.within == 1
    assert "off by a factor of 1.001" in found.reasons[0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_wrong_value_among_many_fails(dtype: torch.dtype) -> None:
    exact = truth(128, 256)
    kernel = exact.to(dtype)
    kernel[3, 4] += 1
    found = judged(exact.to(dtype), kernel, exact)
    assert found.reasons[0] == "output: 1 of 32768 values are out of tolerance"
    assert found.max_abs == pytest.approx(1, abs=0.01)


def test_an_original_with_an_error_of_its_own_grants_slack_times_that() -> None:
    exact = truth(32, 64)
    original = (exact + 1e-4 * truth(64, 32).T).float()
    close, far = ((exact + scale * truth(32, 64).flip(0)).float() for scale in (2e-4, 2e-3))
    assert judged(original, close, exact).passed
    assert not judged(original, far, exact).passed


def test_cancellation_is_measured_by_the_row_and_not_by_the_value() -> None:
    exact = truth(8, 64)
    exact[:, 5] = 1e-12
    noise = 1e-7 * truth(8, 64).roll(1)
    assert judged((exact + noise.flip(0)).float(), (exact + noise).float(), exact).passed


def test_a_small_row_beside_a_large_one_is_judged_by_itself() -> None:
    exact = truth(2, 64) * torch.tensor([[1e6], [1.0]], dtype=torch.float64)
    kernel = exact.float()
    kernel[1] += 1e-2
    assert not judged(exact.float(), kernel, exact).passed


def test_a_float64_original_that_computes_in_float32_is_judged_as_such() -> None:
    exact = truth(64, 64)
    kernel = exact * (1 + 1e-6 * truth(64, 64).sign())
    assert judged(exact.float().double(), kernel, exact).passed
    assert not judged(exact, kernel, exact).passed


def test_without_a_reference_the_original_is_the_yardstick() -> None:
    exact = truth(64, 64)
    assert judged(exact.float(), (exact + 1e-6).float(), None).passed
    found = judged(exact.float(), (exact + 1e-3).float(), None)
    assert not found.passed
    assert found.original_error is None


def test_an_original_that_does_not_follow_its_reference_is_no_yardstick() -> None:
    exact = truth(64, 64)
    found = judged(exact.float(), (exact * 1.1).float(), -exact)
    assert not found.passed
    assert found.original_error is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_in_both_is_equal(value: float) -> None:
    exact = truth(4, 32)
    original = exact.float()
    original[1, 2] = value
    found = judged(original, original.clone(), exact)
    assert found.passed
    assert (found.max_abs, found.identical) == (0, 1)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_in_the_kernel_alone_fails(value: float) -> None:
    exact = truth(4, 32)
    kernel = exact.float()
    kernel[1, 2] = value
    found = judged(exact.float(), kernel, exact)
    assert not found.passed
    assert found.within == 1 - 1 / 128
    assert found.to_dict()["max_abs"] == str(value)


def test_a_kernel_that_stays_finite_where_the_original_overflows_passes() -> None:
    exact = truth(4, 32)
    original = exact.half()
    original[0, 0] = math.inf
    assert judged(original, exact.half(), exact).passed


def test_all_zeros_pass_against_zeros_and_nothing_else_does() -> None:
    zeros = torch.zeros(4, 32)
    assert judged(zeros, zeros.clone(), zeros.double()).passed
    assert not judged(zeros, zeros + 1e-9, zeros.double()).passed


def test_an_empty_result_passes() -> None:
    assert judged(torch.ones(0, 3), torch.ones(0, 3), None).passed


def test_integers_are_compared_exactly() -> None:
    values = torch.arange(10)
    assert judged(values, values.clone(), None).passed
    assert judged(values, values.flip(0), None).reasons == ("output: 10 of 10 values differ",)


def test_complex_values_are_compared_by_their_parts() -> None:
    values = torch.view_as_complex(truth(8, 32, 2).float())
    assert judged(values, values + 1e-8, None).passed
    assert not judged(values, values + 1e-2j, None).passed


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (torch.ones(3, 2), "output: shape is (3, 2), the original's (2, 3)"),
        (torch.ones(2, 3).double(), "output: dtype is torch.float64, the original's torch.float32"),
    ],
)
def test_another_kind_of_tensor_fails(kernel: torch.Tensor, reason: str) -> None:
    assert judged(torch.ones(2, 3), kernel, None).reasons == (reason,)


def test_a_dtype_without_thresholds_is_judged_by_equality() -> None:
    values = torch.ones(4, dtype=torch.float32)
    found = judge("output", values, values + 1, None, {})
    assert found.reasons == ("output: 4 of 4 values differ, and policy.verify.thresholds says nothing about float32",)
    assert judge("output", values, values.clone(), None, {}).passed


def test_a_lower_share_lets_single_values_be_wrong() -> None:
    exact = truth(128, 256)
    kernel = exact.float()
    kernel[0, 0] += 1e-4
    thresholds = {"float32": {**THRESHOLDS["float32"], "share": 0.999}}
    assert judge("output", exact.float(), kernel, exact, thresholds).passed


def test_limits_are_found_by_dtype() -> None:
    assert Limits.of(THRESHOLDS, torch.float16) == Limits(slack=8.0, floor=2.0e-03, gain=6.0e-05, share=1.0)
    assert Limits.of(THRESHOLDS, torch.float8_e4m3fn) is None


def test_merging_takes_the_worst_and_weighs_shares_by_size() -> None:
    one = Difference(max_abs=1.0, gain=-0.5, within=1.0, identical=1.0, count=3)
    other = Difference(max_abs=math.nan, gain=0.25, within=0.0, identical=0.0, count=1, reasons=("why",))
    merged = Difference.merged([one, other])
    assert merged.max_abs is not None and math.isnan(merged.max_abs)
    assert (merged.gain, merged.within, merged.reasons, merged.passed) == (-0.5, 0.75, ("why",), False)


def test_merging_nothing_measures_nothing() -> None:
    assert Difference.merged([]) == Difference()


def test_numbers_that_json_lacks_become_text() -> None:
    assert [number(value) for value in (None, 1.5, math.inf, -math.inf, math.nan)] == [None, 1.5, "inf", "-inf", "nan"]


def test_the_relative_error_looks_at_finite_values_only() -> None:
    values = torch.tensor([3.0, math.nan, 4.0])
    assert relative_error(values * 1.1, values) == pytest.approx(0.1)
    assert relative_error(torch.zeros(3), torch.zeros(3)) == 0


def test_sparse_tensors_are_compared_by_their_values() -> None:
    values = torch.eye(20)
    assert judged(values.to_sparse(), values.to_sparse(), values.to_sparse()).passed
    assert not judged(values.to_sparse(), (values * 2).to_sparse(), None).passed
    assert judged(values, values.to_sparse(), None).reasons == (
        "output: layout is torch.sparse_coo, the original's torch.strided",
    )


def test_nested_tensors_are_compared_by_their_values() -> None:
    one, other = (
        torch.nested.nested_tensor([torch.ones(2) * size, torch.ones(3)], layout=torch.jagged) for size in (1, 2)
    )
    assert judged(one, one.clone(), None).passed
    assert not judged(one, other, None).passed


def test_what_holds_no_values_cannot_be_compared() -> None:
    empty = torch.ones(3, device="meta")
    assert judged(empty, empty, None).reasons == (
        "output: the original's is on the meta device, and cannot be compared",
    )


def test_float8_is_judged_by_equality() -> None:
    values = truth(4, 32).to(torch.float8_e4m3fn)
    assert judged(values, values.clone(), truth(4, 32)).passed
    assert "says nothing about float8_e4m3fn" in judged(values, (-truth(4, 32)).to(values.dtype), None).reasons[0]


def rows(original: torch.Tensor, kernel: torch.Tensor, exact: torch.Tensor | None, *others: torch.Tensor) -> Difference:
    return judge_rows("output", original, kernel, exact, others, THRESHOLDS, ())


def test_a_row_is_judged_as_one() -> None:
    exact = truth(8, 64)
    original, kernel = (exact + 1e-4 * noise for noise in (truth(64, 8).T, truth(8, 64).flip(0)))
    spiked = kernel.clone()
    spiked[2, 3] += 2e-3  # 20 times what is usual, in one value of a row
    assert rows(original.float(), spiked.float(), exact).passed
    assert not judged(original.float(), spiked.float(), exact).passed
    assert rows(original.float(), (kernel + (torch.arange(8) == 5)[:, None]).float(), exact).reasons == (
        "output: 1 of 8 rows are out of tolerance",
    )


def test_others_that_are_as_far_off_excuse_a_row() -> None:
    exact = truth(8, 64)
    kernel, other = ((exact + size * truth(8, 64).flip(0)).float() for size in (1e-2, -2e-2))
    assert not rows(exact.float(), kernel, exact).passed
    assert rows(exact.float(), kernel, exact, other).passed
    assert not rows(exact.float(), kernel, None).passed
    assert rows(exact.float(), kernel, None, other).passed


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_row_that_is_not_finite_in_the_kernel_alone_fails(value: float) -> None:
    exact = truth(8, 64)
    kernel = exact.float()
    kernel[1, 1] = value
    assert not rows(exact.float(), kernel, exact).passed
    assert rows(kernel, kernel.clone(), exact).passed


def test_the_loosest_dtype_of_the_model_sets_the_floor() -> None:
    exact = truth(8, 64)
    arguments = ("output", exact.float(), (exact * 1.004).float(), exact, (), THRESHOLDS)
    assert not judge_rows(*arguments, [torch.float32]).passed
    assert judge_rows(*arguments, [torch.bfloat16]).passed


def test_whole_numbers_have_no_tolerance_but_for_what_one_rounding_changes() -> None:
    one, other = torch.arange(4), torch.arange(4).flip(0)
    assert rows(one, one.clone(), None).passed
    assert not rows(one, other, None).passed
    assert rows(one, other, None, other).passed
