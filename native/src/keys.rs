//! A table of distinct texts: where other texts are in it. `timeline/codec/row_hash.py` does the same with numpy.

use std::hash::BuildHasher;
use std::panic::{AssertUnwindSafe, catch_unwind};

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::bytes_of;

const OFFSET: usize = 4;
const NOT_THERE: i64 = -1;

/// Texts as Arrow lays them out: int32 offsets and bytes.
#[derive(Clone, Copy)]
struct Texts<'a> {
    offsets: &'a [u8],
    data: &'a [u8],
}

impl<'a> Texts<'a> {
    /// `count` texts from the text number `start` on.
    fn new(offsets: &'a [u8], data: &'a [u8], start: usize, count: usize) -> Option<Self> {
        let end = start.checked_add(count)?.checked_add(1)?.checked_mul(OFFSET)?;
        Some(Texts { offsets: offsets.get(start * OFFSET..end)?, data })
    }

    fn offset(&self, at: usize) -> Option<usize> {
        let number = self.offsets.get(at * OFFSET..)?.first_chunk()?;
        usize::try_from(i32::from_le_bytes(*number)).ok()
    }

    fn get(&self, at: usize) -> Option<&'a [u8]> {
        self.data.get(self.offset(at)?..self.offset(at + 1)?)
    }
}

/// Texts and where each of them is. They are not copied.
#[pyclass(frozen)]
pub struct Keys {
    offsets: PyUntypedBuffer,
    data: PyUntypedBuffer,
    start: usize,
    count: usize,
    table: HashTable<u32>,
    state: DefaultHashBuilder,
}

#[pymethods]
impl Keys {
    /// ValueError: not distinct, or not texts.
    #[new]
    fn new(py: Python, offsets: &Bound<PyAny>, data: &Bound<PyAny>, start: usize, count: usize) -> PyResult<Self> {
        let (offsets, data) = (PyUntypedBuffer::get(offsets)?, PyUntypedBuffer::get(data)?);
        let texts = Texts::new(bytes_of(&offsets)?, bytes_of(&data)?, start, count);
        let state = DefaultHashBuilder::default();
        let table = caught(py, || build(texts?, count, &state))?;
        Ok(Keys { offsets, data, start, count, table, state })
    }

    /// For each text its number in the table, as int64; -1: it is not there. ValueError: not texts.
    fn find<'py>(
        &self,
        py: Python<'py>,
        offsets: &Bound<'py, PyAny>,
        data: &Bound<'py, PyAny>,
        start: usize,
        count: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (offsets, data) = (PyUntypedBuffer::get(offsets)?, PyUntypedBuffer::get(data)?);
        let probes = Texts::new(bytes_of(&offsets)?, bytes_of(&data)?, start, count);
        let known = Texts::new(bytes_of(&self.offsets)?, bytes_of(&self.data)?, self.start, self.count);
        let found = caught(py, || self.numbers(probes?, count, known?))?;
        Ok(PyBytes::new(py, &found))
    }
}

impl Keys {
    fn numbers(&self, probes: Texts, count: usize, known: Texts) -> Option<Vec<u8>> {
        let mut found = Vec::new();
        found.try_reserve_exact(count.checked_mul(size_of::<i64>())?).ok()?;
        for at in 0..count {
            let text = probes.get(at)?;
            let hash = self.state.hash_one(text);
            let there = self.table.find(hash, |&number| known.get(number as usize) == Some(text));
            found.extend_from_slice(&there.map_or(NOT_THERE, |&number| i64::from(number)).to_ne_bytes());
        }
        Some(found)
    }
}

fn build(texts: Texts, count: usize, state: &DefaultHashBuilder) -> Option<HashTable<u32>> {
    let last = u32::try_from(count).ok()?;
    let hash_of = |&number: &u32| state.hash_one(texts.get(number as usize).unwrap_or_default());
    let mut table = HashTable::new();
    table.try_reserve(count, hash_of).ok()?;
    for number in 0..last {
        let text = texts.get(number as usize)?;
        match table.entry(state.hash_one(text), |&one| texts.get(one as usize) == Some(text), hash_of) {
            Entry::Occupied(_) => return None,
            Entry::Vacant(place) => place.insert(number),
        };
    }
    Some(table)
}

/// What `work` makes, without Python's lock. ValueError: nothing, or it panicked.
fn caught<T: Send>(py: Python, work: impl FnOnce() -> Option<T> + Send) -> PyResult<T> {
    py.detach(|| catch_unwind(AssertUnwindSafe(work)).ok().flatten())
        .ok_or_else(|| PyValueError::new_err("texts that are not distinct, or not laid out as Arrow's"))
}
