"use strict";
(() => {
  const id = (name) => document.getElementById(name);
  const tree = id("tree");

  // A link to a folded part unfolds it; so does a page that is opened at one.
  const reveal = () => {
    const target = location.hash.length > 1 && id(decodeURIComponent(location.hash.slice(1)));
    for (let each = target; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
    if (target && target.tagName === "DETAILS") {
      target.firstElementChild.focus({ preventScroll: true });
      target.scrollIntoView({ block: "nearest" });
    }
  };
  addEventListener("hashchange", reveal);
  reveal();

  // On paper nothing can be unfolded.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")].filter((each) => !tree || !tree.contains(each));
    folded.forEach((each) => (each.open = true));
  });
  addEventListener("afterprint", () => folded.forEach((each) => (each.open = false)));

  const copy = id("copy");
  if (copy && navigator.clipboard) {
    copy.hidden = false;
    copy.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(id("command").textContent);
        copy.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(id("command"));
        copy.textContent = "Selected";
      }
    });
  }
  if (!tree) return;

  const groups = [...id("groups").children].map((each) => each.dataset);
  const sites = [...tree.querySelectorAll("li[data-p]")].map((line) => {
    const group = groups[line.dataset.g];
    const words = [line.dataset.p, group.name, group.kernel, group.kind, group.status].join(" ").toLowerCase();
    return { line, group, words };
  });
  const modules = [...tree.querySelectorAll("details")].reverse().map((fold) => ({ fold, line: fold.parentElement }));
  const first = modules.map(({ fold }) => fold.open);
  const find = id("find");
  const selects = [...document.querySelectorAll(".filter select")];
  const few = 400; // matches that are unfolded at once
  let filtered = false;

  const filter = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const asked = selects.filter((each) => each.value).map((each) => [each.dataset.by, each.value]);
    const active = words.length + asked.length > 0;
    const kept = new Set();
    let count = 0;
    for (const { line, group, words: said } of sites) {
      const fits = asked.every(([key, value]) => group[key] === value) && words.every((word) => said.includes(word));
      if (line.hidden === fits) line.hidden = !fits;
      if (!fits) continue;
      count += 1;
      for (let each = line.parentElement; each !== tree && !kept.has(each); each = each.parentElement) kept.add(each);
    }
    modules.forEach(({ fold, line }, place) => {
      const fits = kept.has(fold);
      if (line.hidden === fits) line.hidden = !fits;
      if (active && fits && count <= few) fold.open = true;
      else if (!active && filtered) fold.open = first[place];
    });
    filtered = active;
    id("shown").textContent = active ? `${count} of ${sites.length} sites` : `${sites.length} sites`;
    document.querySelector(".none").hidden = count > 0;
  };
  find.addEventListener("input", filter);
  selects.forEach((each) => each.addEventListener("change", filter));
  document.querySelector(".filter").addEventListener("submit", (event) => event.preventDefault());
  id("open").addEventListener("click", () => modules.forEach(({ fold }) => (fold.open = true)));
  id("close").addEventListener("click", () => modules.forEach(({ fold }) => (fold.open = false)));

  // Arrows walk the tree, as in a file browser; `/` goes to the search.
  tree.addEventListener("keydown", (event) => {
    const here = event.target.closest("summary, a");
    if (!here || event.altKey || event.ctrlKey || event.metaKey) return;
    const fold = here.tagName === "SUMMARY" ? here.parentElement : null;
    const lines = () => [...tree.querySelectorAll("summary, a")].filter((each) => each.checkVisibility());
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const all = lines();
      const next = all[all.indexOf(here) + (event.key === "ArrowDown" ? 1 : -1)];
      if (next) next.focus();
    } else if (event.key === "ArrowRight" && fold) {
      fold.open = true;
    } else if (event.key === "ArrowLeft") {
      if (fold && fold.open) fold.open = false;
      else here.parentElement.parentElement.closest("details")?.firstElementChild.focus();
    } else return;
    event.preventDefault();
  });
  addEventListener("keydown", (event) => {
    const typing = event.target.closest && event.target.closest("input, select, textarea");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      find.focus();
    }
  });
})();
