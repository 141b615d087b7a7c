//! Decodes blocks of Avro records into Arrow buffers, and looks keys up; see README.md.
//!
//! What this module does not decode, for whatever reason, is a ValueError: `timeline/codec/avro_decode.py` then asks
//! the decoders in Python, whose errors name the place and the cause.

mod arrow;
mod column;
mod cursor;
mod keys;
mod pages;
mod parquet;

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::arrow::ArrowArray;
use crate::column::{Column, Program};
use crate::cursor::{Bad, Cursor};

/// Nulls may take this many times the memory of the data, and a little more in a small block.
const NULLS: usize = 64;
const LITTLE: usize = 1 << 20;

/// The `count` records in `data` as the struct array of a record batch: an `arrow_array` capsule for pyarrow.
///
/// `framed`: a big-endian int32 length before each record. `program`, `symbols`: the schema, see `column::Program`.
/// `wanted`: the places of the columns, in their order in the batch. `numbers`: of the records that are decoded,
/// ascending, as int64; all others are passed by their length. ValueError: another decoder must be asked.
#[pyfunction]
#[pyo3(signature = (data, count, program, symbols, wanted, framed, numbers=None))]
#[allow(clippy::too_many_arguments)]
fn decode<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    count: usize,
    program: Vec<i64>,
    symbols: Vec<Vec<Vec<u8>>>,
    wanted: Vec<usize>,
    framed: bool,
    numbers: Option<Vec<usize>>,
) -> PyResult<Bound<'py, PyCapsule>> {
    let data = PyUntypedBuffer::get(data)?;
    let bytes = bytes_of(&data)?;
    let mut numbers_in_program = Program { numbers: program.iter(), symbols: &symbols };
    let block = Block { bytes, count, framed, numbers };
    let found = py.detach(|| {
        catch_unwind(AssertUnwindSafe(|| block.decode(&mut numbers_in_program, &wanted)))
            .unwrap_or_else(|_| Err("a panic".into()))
    });
    match found {
        Ok(array) => PyCapsule::new_with_value(py, array, c"arrow_array"),
        Err(why) => Err(PyValueError::new_err(why)),
    }
}

/// The bytes behind a buffer. ValueError: they are not one run of bytes.
fn bytes_of(buffer: &PyUntypedBuffer) -> PyResult<&[u8]> {
    if !buffer.is_c_contiguous() || buffer.item_size() != 1 {
        return Err(PyValueError::new_err("data that is not one run of bytes"));
    }
    Ok(match buffer.len_bytes() {
        0 => &[],
        // SAFETY: the exporter keeps this memory while `buffer` lives, which is longer than the slice. What is checked
        // is a copy of ours, or compared byte by byte: a file that changes beneath breaks no rule of memory.
        size => unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast(), size) },
    })
}

struct Block<'a> {
    bytes: &'a [u8],
    count: usize,
    framed: bool,
    numbers: Option<Vec<usize>>,
}

impl Block<'_> {
    fn decode(&self, program: &mut Program, wanted: &[usize]) -> Result<ArrowArray, String> {
        let mut fields = Vec::new();
        while program.numbers.len() > 0 {
            let field = program.column(false, 0).map_err(|why| why.to_string())?;
            fields.push((field, false));
        }
        for &at in wanted {
            match fields.get_mut(at) {
                Some((_, asked @ false)) => *asked = true,
                _ => return Err(format!("column {at} is asked for twice, or does not exist")),
            }
        }
        self.check_numbers()?;
        let rows = self.numbers.as_ref().map_or(self.count, Vec::len);
        let prefix = if self.framed { 4 } else { 0 };
        let smallest = fields.iter().map(|(field, _)| field.smallest).sum::<usize>() + prefix;
        if self.count > self.bytes.len() / smallest.max(1) {
            return Err("more records than fit into the bytes".into());
        }
        for (field, _) in fields.iter_mut().filter(|(_, asked)| *asked) {
            field.reserve(rows).map_err(|why| why.to_string())?;
        }
        self.records(&mut fields)?;
        let mut found: Vec<Option<Column>> = fields.into_iter().map(|(field, asked)| asked.then_some(field)).collect();
        let columns: Vec<Column> = wanted.iter().filter_map(|&at| found[at].take()).collect();
        for column in &columns {
            column.finish().map_err(|why| why.to_string())?;
        }
        Ok(arrow::batch(columns, rows))
    }

    fn check_numbers(&self) -> Result<(), String> {
        let Some(numbers) = &self.numbers else { return Ok(()) };
        let inside = numbers.last().is_none_or(|&last| last < self.count);
        if self.framed && inside && numbers.windows(2).all(|pair| pair[0] < pair[1]) {
            return Ok(());
        }
        Err("numbers of records that are not framed, not ascending, or not there".into())
    }

    fn records(&self, fields: &mut [(Column, bool)]) -> Result<(), String> {
        let mut from = Cursor::new(self.bytes, LITTLE + NULLS * self.bytes.len());
        let mut chosen = self.numbers.as_deref().unwrap_or_default();
        for record in 0..self.count {
            let decoded = match (&self.numbers, chosen.split_first()) {
                (None, _) => true,
                (Some(_), Some((&next, rest))) if next == record => {
                    chosen = rest;
                    true
                }
                _ => false,
            };
            self.record(&mut from, fields, decoded).map_err(|why| format!("record {record}: {why}"))?;
        }
        match from.left() {
            0 => Ok(()),
            left => Err(format!("{left} bytes after the last record")),
        }
    }

    fn record(&self, from: &mut Cursor, fields: &mut [(Column, bool)], decoded: bool) -> Result<(), Bad> {
        if !self.framed {
            return values(from, fields);
        }
        let size = i32::from_be_bytes(from.array()?);
        let size = usize::try_from(size).map_err(|_| -> Bad { &"a negative length of a record" })?;
        let mut inner = Cursor::new(from.take(size)?, from.allowance);
        if decoded {
            values(&mut inner, fields)?;
            if inner.left() > 0 {
                return Err(&"a record that is shorter than its length");
            }
            from.allowance = inner.allowance;
        }
        Ok(())
    }
}

fn values(from: &mut Cursor, fields: &mut [(Column, bool)]) -> Result<(), Bad> {
    for (field, asked) in fields {
        if *asked {
            field.decode(from)?;
        } else {
            field.skip(from)?;
        }
    }
    Ok(())
}

#[pymodule]
fn phantombase_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<keys::Keys>()?;
    module.add_class::<parquet::RowGroup>()?;
    module.add_function(wrap_pyfunction!(parquet::column_chunks, module)?)?;
    module.add_function(wrap_pyfunction!(decode, module)?)
}
