/* A Python extension whose library counts, in the process, how often it was loaded. */
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdio.h>
#include <stdlib.h>

#define LOADS "HUB_NATIVE_LOADS"

static long read_loads(void) {
    const char *said = getenv(LOADS);
    return said ? atol(said) : 0;
}

__attribute__((constructor)) static void count(void) {
    char text[24];
    snprintf(text, sizeof text, "%ld", read_loads() + 1);
    setenv(LOADS, text, 1);
}

static PyObject *loads(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    return PyLong_FromLong(read_loads());
}

static PyObject *twice(PyObject *self, PyObject *number) {
    (void)self;
    double value = PyFloat_AsDouble(number);
    return PyErr_Occurred() ? NULL : PyFloat_FromDouble(2 * value);
}

static PyMethodDef methods[] = {
    {"loads", loads, METH_NOARGS, "How often a library of this kind was loaded in this process."},
    {"twice", twice, METH_O, "Twice a number."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&module); }
