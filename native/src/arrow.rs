//! Columns as arrays of Arrow's C data interface: the buffers are handed over, not copied.

use std::any::Any;
use std::ffi::c_void;
use std::ptr::null_mut;

use crate::column::{Bits, Column, Text, Values};

/// As Arrow's specification has it.
#[repr(C)]
pub struct ArrowArray {
    length: i64,
    null_count: i64,
    offset: i64,
    n_buffers: i64,
    n_children: i64,
    buffers: *mut *const c_void,
    children: *mut *mut ArrowArray,
    dictionary: *mut ArrowArray,
    release: Option<unsafe extern "C" fn(*mut ArrowArray)>,
    private_data: *mut c_void,
}

// SAFETY: an array owns all that it points to, and nothing else refers to it.
unsafe impl Send for ArrowArray {}

impl Drop for ArrowArray {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: whoever takes an array over leaves no `release` behind; so this one is still ours, and whole.
            unsafe { release(self) }
        }
    }
}

/// What an array points to.
struct Owned {
    pointers: Vec<*const c_void>,
    children: Vec<*mut ArrowArray>,
    _memory: Vec<Box<dyn Any + Send>>,
}

unsafe extern "C" fn release(array: *mut ArrowArray) {
    // SAFETY: `private_data` and `children` were made by `Builder::finish` from boxes; the caller passes a valid array
    // once, since `release` is unset here. A child that was moved out of has no `release` left: dropping it is nothing.
    unsafe {
        let owned = Box::from_raw((*array).private_data.cast::<Owned>());
        for &child in &owned.children {
            drop(Box::from_raw(child));
        }
        (*array).release = None;
    }
}

#[derive(Default)]
struct Builder {
    pointers: Vec<*const c_void>,
    memory: Vec<Box<dyn Any + Send>>,
    children: Vec<ArrowArray>,
}

impl Builder {
    /// Adds a buffer. Moving a vector does not move its elements, so the pointer stays valid.
    fn buffer<T: Send + 'static>(mut self, mut values: Vec<T>) -> Self {
        values.shrink_to_fit();
        self.pointers.push(values.as_ptr().cast());
        self.memory.push(Box::new(values));
        self
    }

    /// Adds the validity buffer, which is left out where nothing is null.
    fn valid(mut self, valid: Bits) -> Self {
        if valid.unset == 0 {
            self.pointers.push(std::ptr::null());
            return self;
        }
        self.buffer(valid.bytes)
    }

    fn child(mut self, array: ArrowArray) -> Self {
        self.children.push(array);
        self
    }

    fn finish(self, length: usize, nulls: usize) -> ArrowArray {
        let children = self.children.into_iter().map(|child| Box::into_raw(Box::new(child)));
        let mut owned = Box::new(Owned { pointers: self.pointers, children: children.collect(), _memory: self.memory });
        ArrowArray {
            length: length as i64,
            null_count: nulls as i64,
            offset: 0,
            n_buffers: owned.pointers.len() as i64,
            n_children: owned.children.len() as i64,
            buffers: owned.pointers.as_mut_ptr(),
            children: owned.children.as_mut_ptr(),
            dictionary: null_mut(),
            release: Some(release),
            private_data: Box::into_raw(owned).cast(),
        }
    }
}

/// The columns of a record batch of `rows` rows.
pub fn batch(columns: Vec<Column>, rows: usize) -> ArrowArray {
    record(columns, Bits::default(), rows)
}

fn record(fields: Vec<Column>, valid: Bits, rows: usize) -> ArrowArray {
    let nulls = valid.unset;
    let start = Builder::default().valid(valid);
    fields.into_iter().fold(start, |made, field| made.child(array(field))).finish(rows, nulls)
}

fn array(column: Column) -> ArrowArray {
    let (len, nulls) = (column.len, column.valid.unset);
    let text = |made: Builder, text: Text| made.buffer(text.offsets.0).buffer(text.data);
    if let Values::Record(fields) = column.values {
        return record(fields, column.valid, len);
    }
    let made = Builder::default().valid(column.valid);
    let made = match column.values {
        Values::Bool(bits) => made.buffer(bits.bytes),
        Values::Int(data) | Values::TimeMillis(data) => made.buffer(data),
        Values::Long(data) | Values::TimeMicros(data) => made.buffer(data),
        Values::Float(data) => made.buffer(data),
        Values::Double(data) => made.buffer(data),
        Values::String(found) | Values::Bytes(found) | Values::Enum { text: found, .. } => text(made, found),
        Values::Fixed { data, .. } => made.buffer(data),
        Values::Decimal { data, .. } => made.buffer(data),
        Values::List { offsets, item } => made.buffer(offsets.0).child(array(*item)),
        Values::Map { offsets, key, value } => {
            let entries = key.len;
            let pairs = record(vec![*key, *value], Bits::default(), entries);
            made.buffer(offsets.0).child(pairs)
        }
        Values::Record(_) => unreachable!("records are made above"),
    };
    made.finish(len, nulls)
}
