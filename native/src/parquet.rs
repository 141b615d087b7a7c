//! The columns of a Parquet row group as Arrow buffers, some rows at a time: flat ones of the plain and the dictionary
//! encoding. All else is refused; `timeline/codec/parquet_read.py` then asks pyarrow.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::arrow::batch;
use crate::bytes_of;
use crate::column::{Bits, Column, Offsets, Text, Values};
use crate::cursor::{Bad, Result};
use crate::pages::{self, Hybrid, NO_MEMORY, PAD, PLAIN, PLAIN_DICTIONARY, Pages, RLE_DICTIONARY, SHORT, Scratch};

const UNKNOWN: Bad = &"an encoding that is not known";
/// Bytes of text in a batch.
const TEXT_MAX: usize = 32 << 20;
/// Bytes of one page, and of one page of each column.
const PAGE_MAX: usize = 16 << 20;
const PAGES_MAX: usize = 256 << 20;

/// How values are stored. `Wide`: a big-endian number of some bytes.
#[derive(Clone, Copy)]
enum Kind {
    Bool,
    Int,
    Long,
    Text,
    DecimalInt,
    DecimalLong,
    Wide(usize),
}

impl Kind {
    fn of(number: u8, size: usize) -> Result<Self> {
        Ok(match (number, size) {
            (0, 0) => Kind::Bool,
            (1, 0) => Kind::Int,
            (2, 0) => Kind::Long,
            (3, 0) => Kind::Text,
            (4, 0) => Kind::DecimalInt,
            (5, 0) => Kind::DecimalLong,
            (6, 1..=16) => Kind::Wide(size),
            _ => return Err(&"a type that is not known"),
        })
    }

    /// Bytes of a value in memory, without its text.
    fn width(self) -> usize {
        match self {
            Kind::Bool => 1,
            Kind::Int | Kind::Text => 4,
            Kind::Long => 8,
            Kind::DecimalInt | Kind::DecimalLong | Kind::Wide(_) => 16,
        }
    }

    fn empty(self) -> Values {
        match self {
            Kind::Bool => Values::Bool(Bits::default()),
            Kind::Int => Values::Int(vec![]),
            Kind::Long => Values::Long(vec![]),
            Kind::Text => Values::Bytes(Text { offsets: Offsets(vec![0]), data: vec![] }),
            Kind::DecimalInt | Kind::DecimalLong | Kind::Wide(_) => Values::Decimal { size: 0, limit: 0, data: vec![] },
        }
    }
}

/// A column chunk.
struct Reader {
    pages: Pages,
    kind: Kind,
    nullable: bool,
    /// Rows of the chunk, and of the page, that are still to be read.
    left: usize,
    rows: usize,
    levels: Hybrid,
    /// Of the page: numbers in the dictionary, or bits of booleans; else plain values, from where to where.
    codes: Option<Hybrid>,
    plain: (usize, usize),
    dictionary: Option<Values>,
    /// Bytes of text of the last batch.
    text: usize,
}

impl Reader {
    fn new(codec: u8, kind: Kind, nullable: bool, rows: usize, page_max: usize) -> Result<Self> {
        Ok(Reader {
            pages: Pages::new(codec, page_max)?,
            kind,
            nullable,
            left: rows,
            rows: 0,
            levels: Hybrid::default(),
            codes: None,
            plain: (0, 0),
            dictionary: None,
            text: 0,
        })
    }

    /// The next rows. `text_max`: bytes of text that these may have.
    fn read(&mut self, chunk: &[u8], mut rows: usize, text_max: &mut usize, scratch: &mut Scratch) -> Result<Column> {
        let mut out = Column::of(self.nullable, self.kind.empty());
        out.reserve(rows)?;
        if let Values::Bytes(text) = &mut out.values {
            text.data.try_reserve(self.text.min(*text_max)).map_err(|_| NO_MEMORY)?;
        }
        while rows > 0 {
            if self.rows == 0 {
                self.page(chunk, scratch)?;
                continue;
            }
            let some = rows.min(self.rows);
            self.values(&mut out, some, *text_max, scratch)?;
            self.rows -= some;
            self.left -= some;
            rows -= some;
        }
        if self.left == 0 && !self.pages.is_at_end(chunk) {
            return Err(&"bytes after the last page");
        }
        if let Values::Bytes(text) = &out.values {
            self.text = text.data.len() + PAD;
            *text_max -= text.data.len();
        }
        Ok(out)
    }

    fn page(&mut self, chunk: &[u8], scratch: &mut Scratch) -> Result<()> {
        if self.codes.is_none() && self.plain.0 != self.plain.1 {
            return Err(&"a page of more values");
        }
        let page = self.pages.next(chunk, self.nullable, scratch)?;
        let (start, end) = page.values;
        if page.is_dictionary {
            if self.dictionary.is_some() || ![PLAIN, PLAIN_DICTIONARY].contains(&page.encoding) {
                return Err(&"a dictionary that is not known");
            }
            if page.count > self.pages.largest / self.kind.width() {
                return Err(&"a dictionary of many values");
            }
            let (mut found, mut plain) = (self.kind.empty(), page.values);
            let from =
                From { page: &self.pages.body, kind: self.kind, there: page.count, levels: None, text_max: TEXT_MAX };
            from.append(&mut found, &mut plain, None)?;
            if plain.0 != end {
                return Err(&"a dictionary of more values");
            }
            if let Values::Bytes(text) = &mut found {
                text.data.resize(text.data.len() + PAD, 0);
            }
            self.dictionary = Some(found);
            return Ok(());
        }
        // pyarrow ends a column at a page without values.
        if page.count > self.left || page.count == 0 {
            return Err(&"pages of more values than rows, or of none");
        }
        self.rows = page.count;
        self.levels = Hybrid::new(page.levels.0, page.levels.1, 1);
        (self.codes, self.plain) = match page.encoding {
            PLAIN if matches!(self.kind, Kind::Bool) => (Some(Hybrid::bits(start, end)), (0, 0)),
            PLAIN => (None, page.values),
            PLAIN_DICTIONARY | RLE_DICTIONARY if self.dictionary.is_some() && start < end => {
                let width = usize::from(self.pages.body[start]);
                if width > 32 {
                    return Err(&"numbers of many bits");
                }
                (Some(Hybrid::new(start + 1, end, width)), (0, 0))
            }
            _ => return Err(UNKNOWN),
        };
        Ok(())
    }

    fn values(&mut self, out: &mut Column, rows: usize, text_max: usize, scratch: &mut Scratch) -> Result<()> {
        let page = &self.pages.body;
        let (mut levels, mut there) = (None, rows);
        if self.nullable && !self.levels.is_one(page, rows)? {
            self.levels.take(page, rows, &mut scratch.levels)?;
            there = scratch.levels.iter().map(|&level| level as usize).sum();
            levels = Some(&scratch.levels[..]);
        }
        out.push_valid(levels, rows)?;
        let codes = match &mut self.codes {
            Some(codes) => {
                codes.take(page, there, &mut scratch.codes)?;
                Some((&scratch.codes[..], self.dictionary.as_ref()))
            }
            None => None,
        };
        From { page, kind: self.kind, there, levels, text_max }.append(&mut out.values, &mut self.plain, codes)
    }
}

/// Numbers in a dictionary; without one they are booleans.
type Codes<'a> = Option<(&'a [u32], Option<&'a Values>)>;

/// Where some values come from: `there` of them, at the rows whose level is one.
struct From<'a> {
    page: &'a [u8],
    kind: Kind,
    there: usize,
    levels: Option<&'a [u32]>,
    text_max: usize,
}

impl From<'_> {
    fn append(&self, out: &mut Values, plain: &mut (usize, usize), codes: Codes) -> Result<()> {
        match (out, codes) {
            (Values::Bool(bits), Some((codes, None))) => match self.levels {
                None => codes.iter().try_for_each(|&bit| bits.push(bit == 1)),
                Some(levels) => {
                    let mut codes = codes.iter();
                    levels.iter().try_for_each(|&level| bits.push(level == 1 && codes.next() == Some(&1)))
                }
            },
            (Values::Int(out), None) => self.plain(out, plain, 4, int),
            (Values::Int(out), Some((codes, Some(Values::Int(known))))) => self.coded(out, codes, known),
            (Values::Long(out), None) => self.plain(out, plain, 8, long),
            (Values::Long(out), Some((codes, Some(Values::Long(known))))) => self.coded(out, codes, known),
            (Values::Decimal { data: out, .. }, None) => match self.kind {
                Kind::DecimalInt => self.plain(out, plain, 4, |bytes| int(bytes).into()),
                Kind::DecimalLong => self.plain(out, plain, 8, |bytes| long(bytes).into()),
                Kind::Wide(size) => self.plain(out, plain, size, wide),
                _ => Err(UNKNOWN),
            },
            (Values::Decimal { data: out, .. }, Some((codes, Some(Values::Decimal { data: known, .. })))) => {
                self.coded(out, codes, known)
            }
            (Values::Bytes(out), None) => self.plain_text(out, plain),
            (Values::Bytes(out), Some((codes, Some(Values::Bytes(known))))) => self.coded_text(out, codes, known),
            _ => Err(UNKNOWN),
        }
    }

    fn rows(&self) -> usize {
        self.levels.map_or(self.there, <[u32]>::len)
    }

    fn plain<T: Copy + Default>(
        &self,
        out: &mut Vec<T>,
        plain: &mut (usize, usize),
        size: usize,
        get: impl Fn(&[u8]) -> T,
    ) -> Result<()> {
        let bytes = self.there.checked_mul(size).filter(|&bytes| bytes <= plain.1 - plain.0).ok_or(SHORT)?;
        let start = out.len();
        out.try_reserve(self.rows()).map_err(|_| NO_MEMORY)?;
        out.extend(self.page[plain.0..plain.0 + bytes].chunks_exact(size).map(get));
        plain.0 += bytes;
        self.spread(out, start, |_, _| T::default());
        Ok(())
    }

    fn coded<T: Copy + Default>(&self, out: &mut Vec<T>, codes: &[u32], known: &[T]) -> Result<()> {
        check(codes, known.len())?;
        let start = out.len();
        out.try_reserve(self.rows()).map_err(|_| NO_MEMORY)?;
        out.extend(codes.iter().map(|&code| known[code as usize]));
        self.spread(out, start, |_, _| T::default());
        Ok(())
    }

    /// Moves the values from `start` on to the rows that have one. `null`: of the others, by the place of the next value.
    fn spread<T: Copy + Default>(&self, out: &mut Vec<T>, start: usize, null: impl Fn(&[T], usize) -> T) {
        let Some(levels) = self.levels else { return };
        let mut at = out.len();
        out.resize(start + levels.len(), T::default());
        for row in (0..levels.len()).rev() {
            if levels[row] == 1 {
                at -= 1;
                out[start + row] = out[at];
            } else {
                out[start + row] = null(out, at);
            }
        }
    }

    fn plain_text(&self, out: &mut Text, plain: &mut (usize, usize)) -> Result<()> {
        let (first, end) = *plain;
        let (start, base) = (self.begin(out)?, out.data.len());
        let (mut at, mut total) = (first, base);
        for _ in 0..self.there {
            let size = self.page.get(at..end).and_then(|rest| rest.first_chunk()).ok_or(SHORT)?;
            let size = u32::from_le_bytes(*size) as usize;
            at += 4;
            if size > end - at {
                return Err(SHORT);
            }
            at += size;
            total += size;
            out.offsets.0.push(total as i32);
        }
        self.room(out, total)?;
        let (mut at, mut to) = (first, base);
        for row in start..out.offsets.0.len() {
            let size = out.offsets.0[row] as usize - to;
            copy(&mut out.data, to, &self.page[at + 4..], size);
            at += 4 + size;
            to += size;
        }
        out.data.truncate(total);
        plain.0 = at;
        self.spread(&mut out.offsets.0, start, |ends, at| ends[at - 1]);
        Ok(())
    }

    fn coded_text(&self, out: &mut Text, codes: &[u32], known: &Text) -> Result<()> {
        let ends = &known.offsets.0;
        check(codes, ends.len() - 1)?;
        let (start, base) = (self.begin(out)?, out.data.len());
        let mut total = base;
        for &code in codes {
            total += (ends[code as usize + 1] - ends[code as usize]) as usize;
            out.offsets.0.push(total as i32);
        }
        self.room(out, total)?;
        let mut to = base;
        for &code in codes {
            let from = ends[code as usize] as usize;
            let size = ends[code as usize + 1] as usize - from;
            copy(&mut out.data, to, &known.data[from..], size);
            to += size;
        }
        out.data.truncate(total);
        self.spread(&mut out.offsets.0, start, |ends, at| ends[at - 1]);
        Ok(())
    }

    /// Takes memory for more ends; the number of those that there are.
    fn begin(&self, out: &mut Text) -> Result<usize> {
        out.offsets.0.try_reserve(self.rows()).map_err(|_| NO_MEMORY)?;
        Ok(out.offsets.0.len())
    }

    /// Makes the text so long, and the pad.
    fn room(&self, out: &mut Text, total: usize) -> Result<()> {
        if total > self.text_max {
            return Err(&"much text");
        }
        let wanted = total + PAD;
        out.data.try_reserve(wanted - out.data.len()).map_err(|_| NO_MEMORY)?;
        out.data.resize(wanted, 0);
        Ok(())
    }
}

fn int(bytes: &[u8]) -> i32 {
    i32::from_le_bytes(bytes.first_chunk().copied().unwrap_or_default())
}

fn long(bytes: &[u8]) -> i64 {
    i64::from_le_bytes(bytes.first_chunk().copied().unwrap_or_default())
}

fn wide(bytes: &[u8]) -> i128 {
    let mut whole = [if bytes[0] < 0x80 { 0 } else { 0xff }; 16];
    whole[16 - bytes.len()..].copy_from_slice(bytes);
    i128::from_be_bytes(whole)
}

fn check(codes: &[u32], count: usize) -> Result<()> {
    match codes.iter().max() {
        Some(&most) if most as usize >= count => Err(&"a value that the dictionary does not have"),
        _ => Ok(()),
    }
}

/// Copies some bytes, and perhaps a few behind them: there is room for these.
#[inline(always)]
fn copy(to: &mut [u8], at: usize, from: &[u8], size: usize) {
    if size <= 16 {
        to[at..at + 16].copy_from_slice(&from[..16]);
    } else if size <= PAD {
        to[at..at + PAD].copy_from_slice(&from[..PAD]);
    } else {
        to[at..at + size].copy_from_slice(&from[..size]);
    }
}

/// A column: its chunk's bytes, codec, kind, bytes of a value of the last kind, and whether it has levels.
type Described<'py> = (Bound<'py, PyAny>, u8, u8, usize, bool);

/// Columns of a row group, and how far they are read.
#[pyclass]
pub struct RowGroup {
    chunks: Vec<(PyUntypedBuffer, Reader)>,
    left: usize,
    scratch: Scratch,
}

#[pymethods]
impl RowGroup {
    /// ValueError: another decoder must be asked.
    #[new]
    fn new(columns: Vec<Described>, rows: usize) -> PyResult<Self> {
        let page_max = PAGE_MAX.min(PAGES_MAX / columns.len().max(1));
        let mut chunks = vec![];
        for (data, codec, kind, size, nullable) in columns {
            let made = Kind::of(kind, size).and_then(|kind| Reader::new(codec, kind, nullable, rows, page_max));
            chunks.push((PyUntypedBuffer::get(&data)?, made.map_err(refused)?));
        }
        Ok(RowGroup { chunks, left: rows, scratch: Scratch::default() })
    }

    /// The next rows, at most so many, as `decode` gives them. ValueError: another decoder must be asked for them.
    fn read<'py>(&mut self, py: Python<'py>, rows: usize) -> PyResult<Bound<'py, PyCapsule>> {
        let rows = rows.min(self.left);
        let chunks = self.chunks.iter_mut().map(|(buffer, reader)| Ok((bytes_of(buffer)?, reader)));
        let chunks = chunks.collect::<PyResult<Vec<_>>>()?;
        let scratch = &mut self.scratch;
        let read = || {
            let mut text_max = TEXT_MAX;
            let columns = chunks.into_iter().map(|(chunk, reader)| reader.read(chunk, rows, &mut text_max, scratch));
            columns.collect::<Result<Vec<Column>>>()
        };
        let found = py.detach(|| catch_unwind(AssertUnwindSafe(read)).unwrap_or(Err(&"a panic")));
        self.left -= rows;
        PyCapsule::new_with_value(py, batch(found.map_err(refused)?, rows), c"arrow_array")
    }
}

/// The column chunks of each row group, see `pages::Chunk`. ValueError: another decoder must be asked.
#[pyfunction]
pub fn column_chunks(footer: &[u8]) -> PyResult<Vec<Vec<pages::Chunk>>> {
    catch_unwind(|| pages::chunks(footer)).unwrap_or(Err(&"a panic")).map_err(refused)
}

fn refused(why: Bad) -> PyErr {
    PyValueError::new_err(*why)
}
