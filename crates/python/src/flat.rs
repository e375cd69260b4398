//! Memory that Python and the engine share: one vector of floats behind the buffer protocol. The only unsafe code of this crate.
//!
//! What is promised. A [`Flat`] owns its memory, which never moves and is never freed while a buffer or a tensor refers to it: each
//! of them holds the Python object. Rust reads and writes the memory only inside a call that was given the `Flat`, and holds no
//! reference beyond that call: the engine gets copies. While such a call lasts, the thread that made it cannot use the memory, and
//! the package lets no other thread use it: gradients, parameters and their views belong to the thread of one worker. A user who
//! writes to a model's gradients from another thread in the middle of `backward()` races with PyTorch itself, and with us.
//!
//! Gradients that are not views of a `Flat` are read where PyTorch has put them ([`numbers_at`]): copying them together first would
//! take as long as sending them. The package gives the address of a dense float32 tensor in this process's memory, and holds the
//! tensor until the call has ended.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use paceline_learn::Vector;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::errors::refused;

/// Float32 memory that Rust owns: aligned to 64 bytes, as long as it was made, seen by `torch.frombuffer`, `numpy.frombuffer` and
/// `memoryview` without a copy.
#[pyclass(frozen, module = "paceline._paceline")]
pub struct Flat {
    memory: UnsafeCell<Vector>,
    /// Shape and stride of the buffer, which borrows them.
    shape: [ffi::Py_ssize_t; 1],
    strides: [ffi::Py_ssize_t; 1],
    is_writable: bool,
}

// SAFETY: the memory is only touched in calls of the thread that uses this vector, and through buffers, whose users promise the
// same; see the top of this file.
unsafe impl Sync for Flat {}

const FORMAT: &CStr = c"f";
/// The longest vector: 64 GB.
const LEN_MAX: usize = 1 << 34;

impl Flat {
    /// A vector that Python may only read.
    pub fn read_only(numbers: Vector) -> Flat {
        Flat::of(numbers, false)
    }

    pub fn writable(numbers: Vector) -> Flat {
        Flat::of(numbers, true)
    }

    fn of(numbers: Vector, is_writable: bool) -> Flat {
        let shape = [numbers.len() as ffi::Py_ssize_t];
        let strides = [size_of::<f32>() as ffi::Py_ssize_t];
        Flat { memory: UnsafeCell::new(numbers), shape, strides, is_writable }
    }

    /// Reads the numbers within a call from Python.
    pub fn with<T>(&self, read: impl FnOnce(&[f32]) -> T) -> T {
        // SAFETY: the reference ends with this call, in which the calling thread does not write, nor any other (see above).
        read(unsafe { (*self.memory.get()).as_slice() })
    }

    /// A copy of the numbers.
    pub fn copied(&self) -> Vector {
        self.with(|numbers| Vector::from(numbers))
    }

    /// Changes the numbers within a call from Python.
    pub fn change<T>(&self, change: impl FnOnce(&mut [f32]) -> T) -> PyResult<T> {
        if !self.is_writable {
            return Err(refused("this vector may only be read"));
        }
        // SAFETY: as in `with`; moreover no other reference exists, because this call is the thread's only one.
        let numbers: &mut Vector = unsafe { &mut *self.memory.get() };
        Ok(change(numbers))
    }
}

/// Reads the numbers of a tensor within a call from Python. The package promises that `len` float32 numbers lie at this address, and
/// that they stay there during the call; an address of 0 stands for a tensor that does not exist.
pub fn numbers_at<T>(
    address: usize,
    len: usize,
    read: impl FnOnce(Option<&[f32]>) -> T,
) -> PyResult<T> {
    if address == 0 || len == 0 {
        return Ok(read(None));
    }
    if !address.is_multiple_of(align_of::<f32>()) || len > LEN_MAX {
        return Err(refused("a gradient that does not lie where float32 numbers may lie"));
    }
    // SAFETY: the package promises it, see the top of this file; the reference ends with this call.
    Ok(read(Some(unsafe { std::slice::from_raw_parts(address as *const f32, len) })))
}

#[pymethods]
impl Flat {
    #[new]
    fn new(len: usize) -> PyResult<Flat> {
        if len > LEN_MAX {
            return Err(refused(format!("a vector of {len} numbers: give at most {LEN_MAX}")));
        }
        Ok(Flat::writable(Vector::zeros(len)))
    }

    fn __len__(&self) -> usize {
        self.with(<[f32]>::len)
    }

    /// Where the memory begins.
    #[getter]
    fn address(&self) -> usize {
        self.with(|numbers| numbers.as_ptr() as usize)
    }

    /// # Safety
    /// Called by the interpreter, with a `Py_buffer` to fill.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no view to fill"));
        }
        let flat = slf.get();
        let wants_to_write = flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE;
        if wants_to_write && !flat.is_writable {
            return Err(PyBufferError::new_err("this vector may only be read"));
        }
        let asked = |flag: c_int| flags & flag == flag;
        let start = flat.with(<[f32]>::as_ptr);
        // SAFETY: the interpreter gives a valid `Py_buffer`. The memory, the shape and the strides live in the object, which does not
        // move and which the buffer keeps alive through `obj`.
        unsafe {
            (*view).buf = start as *mut c_void;
            (*view).len = flat.shape[0] * flat.strides[0];
            (*view).itemsize = flat.strides[0];
            (*view).readonly = c_int::from(!flat.is_writable);
            (*view).ndim = 1;
            (*view).format = match asked(ffi::PyBUF_FORMAT) {
                true => FORMAT.as_ptr() as *mut _,
                false => ptr::null_mut(),
            };
            (*view).shape = match asked(ffi::PyBUF_ND) {
                true => flat.shape.as_ptr() as *mut _,
                false => ptr::null_mut(),
            };
            (*view).strides = match asked(ffi::PyBUF_STRIDES) {
                true => flat.strides.as_ptr() as *mut _,
                false => ptr::null_mut(),
            };
            (*view).suboffsets = ptr::null_mut();
            (*view).internal = ptr::null_mut();
            (*view).obj = slf.into_any().into_ptr();
        }
        Ok(())
    }
}
