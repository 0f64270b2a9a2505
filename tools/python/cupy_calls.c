// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The functions that CuPy's PythonFunctionAllocator calls for every array (hetmem.cupy).
 *
 * They are functions of Python in C: no Python code and no ctypes runs for an array. The file
 * needs neither Python.h nor a version of Python. It uses functions of the stable ABI, which
 * the loader finds in the process, and objects only by their address.
 *
 * CuPy exports C functions that return the calling thread's current stream. hetmem.cupy
 * passes their addresses. Nothing else here is of CuPy.
 */
#include <stddef.h>

#include <hetmem.h>
#include <hetmem/framework.h>

#define EXPORT __attribute__((visibility("default")))

/* Python's stable ABI. */
typedef struct _object PyObject;
typedef struct _ts PyThreadState;

extern PyObject *PyExc_TypeError;
extern PyObject *PyExc_SystemError;
PyObject *PyErr_Occurred(void);
void PyErr_SetString(PyObject *type, const char *text);
PyObject *PyLong_FromVoidPtr(void *ptr);
void *PyLong_AsVoidPtr(PyObject *number);
size_t PyLong_AsSize_t(PyObject *number);
long PyLong_AsLong(PyObject *number);
PyObject *PyObject_CallFunction(PyObject *callable, const char *format, ...);
void Py_IncRef(PyObject *object);
void Py_DecRef(PyObject *object);
PyThreadState *PyEval_SaveThread(void);
void PyEval_RestoreThread(PyThreadState *state);

/* PyMethodDef of a function with METH_FASTCALL. */
struct method {
	const char *name;
	PyObject *(*call)(PyObject *self, PyObject *const *args, ptrdiff_t nargs);
	int flags;
	const char *doc;
};

#define METH_FASTCALL	0x80

/*
 * CuPy's functions: the stream of a device, or NULL; the stream of the current device, which
 * older versions have. Set once, before the functions are called, like None.
 */
static ptrdiff_t (*device_stream)(int device);
static ptrdiff_t (*current_stream)(void);
static PyObject *none;

/* Both functions have two arguments; the second one is the device. */
static int parse_device(PyObject *const *args, ptrdiff_t nargs, int *device)
{
	long number;

	if (nargs != 2) {
		PyErr_SetString(PyExc_TypeError, "hetmem: two arguments are needed");
		return -1;
	}
	number = PyLong_AsLong(args[1]);
	if (number == -1 && PyErr_Occurred())
		return -1;
	/* No device has a number outside of int: the library refuses -1. */
	*device = number == (int)number ? (int)number : -1;
	return 0;
}

/* Calls @fail, which raises an exception. */
static PyObject *raise_error(PyObject *fail, int err, size_t size, int device)
{
	PyObject *result = PyObject_CallFunction(fail, "iKi", err, (unsigned long long)size,
						 device);

	if (result) {
		Py_DecRef(result);
		PyErr_SetString(PyExc_SystemError, "hetmem: no memory, and no exception");
	}
	return NULL;
}

/*
 * malloc(size, device). @fail is called with the errno, the size and the device if there is no
 * memory. Other Python threads run while the library works: it can wait for a device, or for a
 * thread that calls Python.
 */
static PyObject *cupy_alloc(PyObject *fail, PyObject *const *args, ptrdiff_t nargs)
{
	PyThreadState *state;
	ptrdiff_t stream = 0;
	void *ptr = NULL;
	size_t size;
	int device, err;

	if (parse_device(args, nargs, &device))
		return NULL;
	size = PyLong_AsSize_t(args[0]);
	if (size == (size_t)-1 && PyErr_Occurred())
		return NULL;
	/* CuPy does not check the number. The library refuses a device without a resource. */
	if (hetmem_torch_resource(device))
		stream = device_stream ? device_stream(device) : current_stream();
	/* Any value is a stream, so only the exception says that there is none. */
	if (PyErr_Occurred())
		return NULL;
	state = PyEval_SaveThread();
	err = hetmem_torch_try_alloc(size, device, (hetmem_stream)stream, &ptr);
	PyEval_RestoreThread(state);
	return err ? raise_error(fail, err, size, device) : PyLong_FromVoidPtr(ptr);
}

/* free(ptr, device), after all work on the stream of the allocation. */
static PyObject *cupy_free(PyObject *self, PyObject *const *args, ptrdiff_t nargs)
{
	PyThreadState *state;
	int device;
	void *ptr;

	(void)self;
	if (parse_device(args, nargs, &device))
		return NULL;
	ptr = PyLong_AsVoidPtr(args[0]);
	if (!ptr && PyErr_Occurred())
		return NULL;
	state = PyEval_SaveThread();
	hetmem_torch_free(ptr, 0, device, HETMEM_STREAM_UNKNOWN);
	PyEval_RestoreThread(state);
	Py_IncRef(none);
	return none;
}

/* For PyCFunction_NewEx(). The object of the first one is what raises the exception. */
EXPORT struct method hetmem_cupy_alloc_method = {
	"hetmem_cupy_alloc", cupy_alloc, METH_FASTCALL, NULL,
};
EXPORT struct method hetmem_cupy_free_method = {
	"hetmem_cupy_free", cupy_free, METH_FASTCALL, NULL,
};

EXPORT void hetmem_cupy_set(ptrdiff_t (*of_device)(int device), ptrdiff_t (*of_current)(void),
			    PyObject *no_object)
{
	device_stream = of_device;
	current_stream = of_current;
	none = no_object;
}
