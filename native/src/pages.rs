//! The pages of a Parquet column chunk, inflated one at a time into a buffer that is used again, and the numbers of few
//! bits in them. The column chunks that a footer names.

use libdeflater::Decompressor;
use zstd_safe::DCtx;

use crate::cursor::{Bad, Result};

/// Bytes behind a page: values may be read some at a time.
pub const PAD: usize = 32;
const DEEPEST: usize = 16;

const FIELD_MAX: i64 = i16::MAX as i64;

const UNKNOWN: Bad = &"a page header or footer that is not known";
const BEYOND: Bad = &"a length beyond the end";
pub const NO_MEMORY: Bad = &"no memory";
const LONG: Bad = &"a run of many values";
pub const SHORT: Bad = &"a page that ends early";

pub const PLAIN: i64 = 0;
pub const PLAIN_DICTIONARY: i64 = 2;
const RLE: i64 = 3;
pub const RLE_DICTIONARY: i64 = 8;

#[derive(Clone, Copy)]
enum Codec {
    None,
    Gzip,
    Zstd,
}

/// What decoding needs for a moment; one is enough for all columns that a thread decodes.
#[derive(Default)]
pub struct Scratch {
    gzip: Option<Decompressor>,
    zstd: Option<DCtx<'static>>,
    pub codes: Vec<u32>,
    pub levels: Vec<u32>,
}

impl Scratch {
    /// The number of bytes that became of `bytes`. None: they are damaged, or too many.
    fn inflate(&mut self, codec: Codec, bytes: &[u8], to: &mut [u8]) -> Option<usize> {
        match codec {
            Codec::None if bytes.len() == to.len() => {
                to.copy_from_slice(bytes);
                Some(bytes.len())
            }
            Codec::None => None,
            Codec::Gzip => self.gzip.get_or_insert_with(Decompressor::new).gzip_decompress(bytes, to).ok(),
            Codec::Zstd => {
                if self.zstd.is_none() {
                    self.zstd = DCtx::try_create();
                }
                self.zstd.as_mut()?.decompress(to, bytes).ok()
            }
        }
    }
}

/// A page in the buffer of `Pages`. `levels` and `values`: from where to where.
pub struct Page {
    pub is_dictionary: bool,
    pub count: usize,
    pub encoding: i64,
    pub levels: (usize, usize),
    pub values: (usize, usize),
}

pub struct Pages {
    at: usize,
    /// Bytes of a page, and of the values of a dictionary; larger ones are left to others.
    pub largest: usize,
    codec: Codec,
    pub body: Vec<u8>,
}

impl Pages {
    pub fn new(codec: u8, largest: usize) -> Result<Self> {
        let codec = match codec {
            0 => Codec::None,
            1 => Codec::Gzip,
            2 => Codec::Zstd,
            _ => return Err(&"a codec that is not known"),
        };
        Ok(Pages { at: 0, largest, codec, body: vec![] })
    }

    pub fn is_at_end(&self, chunk: &[u8]) -> bool {
        self.at == chunk.len()
    }

    /// The next page of the chunk. `nullable`: its values have levels.
    pub fn next(&mut self, chunk: &[u8], nullable: bool, scratch: &mut Scratch) -> Result<Page> {
        let mut from = Thrift { data: chunk.get(self.at..).ok_or(BEYOND)?, at: 0 };
        let head = from.header()?;
        let (plain, stored) = (head.size(2)?, head.size(3)?);
        let bytes = from.data.get(from.at..).and_then(|rest| rest.get(..stored)).ok_or(BEYOND)?;
        self.at += from.at + stored;
        if plain > self.largest {
            return Err(&"a page of many bytes");
        }
        let wanted = plain + PAD;
        if self.body.len() < wanted {
            self.body.try_reserve(wanted - self.body.len()).map_err(|_| NO_MEMORY)?;
            self.body.resize(wanted, 0);
        }
        match head.size(1)? {
            0 => {
                head.field(16 * 5 + 4)?;
                self.inflate(bytes, 0, plain, self.codec, scratch)?;
                let (count, encoding, levels) =
                    (head.size(16 * 5 + 1)?, head.field(16 * 5 + 2)?, head.field(16 * 5 + 3)?);
                let mut start = 0;
                if nullable {
                    let size = self.body[..plain].first_chunk().ok_or(BEYOND)?;
                    start = 4 + u32::from_le_bytes(*size) as usize;
                    if levels != RLE || start > plain {
                        return Err(&"levels that are not known");
                    }
                }
                Ok(Page { is_dictionary: false, count, encoding, levels: (4, start), values: (start, plain) })
            }
            2 => {
                self.inflate(bytes, 0, plain, self.codec, scratch)?;
                let (count, encoding) = (head.size(16 * 7 + 1)?, head.field(16 * 7 + 2)?);
                Ok(Page { is_dictionary: true, count, encoding, levels: (0, 0), values: (0, plain) })
            }
            3 => {
                let (count, encoding) = (head.size(16 * 8 + 1)?, head.field(16 * 8 + 4)?);
                let (start, nulls) = (head.size(16 * 8 + 5)?, head.size(16 * 8 + 2)?);
                if head.size(16 * 8 + 6)? != 0
                    || head.size(16 * 8 + 3)? != count
                    || nulls > count
                    || start > plain.min(stored)
                {
                    return Err(&"levels that are not known");
                }
                self.body[..start].copy_from_slice(&bytes[..start]);
                let codec = if head.numbers[IS_COMPRESSED] == 0 { Codec::None } else { self.codec };
                self.inflate(&bytes[start..], start, plain, codec, scratch)?;
                Ok(Page { is_dictionary: false, count, encoding, levels: (0, start), values: (start, plain) })
            }
            _ => Err(&"a page that is not known"),
        }
    }

    fn inflate(&mut self, bytes: &[u8], start: usize, end: usize, codec: Codec, scratch: &mut Scratch) -> Result<()> {
        let size = scratch.inflate(codec, bytes, &mut self.body[start..end]);
        if size == Some(end - start) { Ok(()) } else { Err(&"a page that is damaged, or of another size") }
    }
}

/// A field of the header of a page of version 2; where it is missing, the page is compressed.
const IS_COMPRESSED: usize = 16 * 8 + 7;

/// The numbers of a page header, of a structure within it at 16 times its own number more.
struct Header {
    numbers: [i64; 160],
}

impl Header {
    fn field(&self, number: usize) -> Result<i64> {
        match self.numbers[number] {
            -1 => Err(&"a page header without a field"),
            found => Ok(found),
        }
    }

    fn size(&self, number: usize) -> Result<usize> {
        usize::try_from(self.field(number)?).map_err(|_| -> Bad { &"a negative size" })
    }
}

/// What a footer says of a column chunk: type, encodings as bits, codec, values, bytes, offset of the data and of the
/// dictionary, and how many levels are counted. -1: nothing.
pub type Chunk = [i64; 8];
const KIND: usize = 0;
const ENCODINGS: usize = 1;
const LEVELS: usize = 7;

/// The column chunks of each row group. A column that is encrypted, lies in another file or lacks a field is refused:
/// pyarrow ends the process when it is asked for the metadata of some of them.
pub fn chunks(footer: &[u8]) -> Result<Vec<Vec<Chunk>>> {
    let (mut from, mut groups) = (Thrift { data: footer, at: 0 }, vec![]);
    from.fields(|from, field, kind| match (field, kind) {
        (4, LIST) => from.structures(|from| {
            groups.push(from.group()?);
            Ok(())
        }),
        (4 | 8.., _) => Err(UNKNOWN),
        _ => from.skip(kind, 1),
    })?;
    if from.at == footer.len() { Ok(groups) } else { Err(UNKNOWN) }
}

const I32: u8 = 5;
const I64: u8 = 6;
const BYTE_ARRAY: i64 = 6;
const LIST: u8 = 9;
const STRUCTURE: u8 = 12;

/// Thrift's compact protocol.
struct Thrift<'a> {
    data: &'a [u8],
    at: usize,
}

impl Thrift<'_> {
    fn header(&mut self) -> Result<Header> {
        let mut found = Header { numbers: [-1; 160] };
        self.structure(0, &mut found)?;
        Ok(found)
    }

    fn structure(&mut self, above: usize, found: &mut Header) -> Result<()> {
        self.fields(|from, field, kind| {
            let place = above + field as usize;
            match kind {
                _ if field > 15 => from.skip(kind, 0)?,
                1 | 2 if place == IS_COMPRESSED => found.numbers[place] = i64::from(kind == 1),
                5 if place != IS_COMPRESSED => found.numbers[place] = from.zigzag()?,
                STRUCTURE if above == 0 && field < 9 => from.structure(16 * place, found)?,
                _ => from.skip(kind, 0)?,
            }
            Ok(())
        })
    }

    /// Calls `each` with the number and wire type of each field of a structure; it must pass the field.
    fn fields(&mut self, mut each: impl FnMut(&mut Self, i64, u8) -> Result<()>) -> Result<()> {
        let mut number = 0;
        while let Some((next, kind)) = self.field(number)? {
            number = next;
            each(self, next, kind)?;
        }
        Ok(())
    }

    fn group(&mut self) -> Result<Vec<Chunk>> {
        let mut found = vec![];
        self.fields(|from, field, kind| match (field, kind) {
            (1, LIST) => from.structures(|from| {
                found.push(from.column()?);
                Ok(())
            }),
            (1, _) => Err(UNKNOWN),
            _ => from.skip(kind, 1),
        })?;
        Ok(found)
    }

    fn column(&mut self) -> Result<Chunk> {
        let mut found = [-1; 8];
        self.fields(|from, field, kind| match (field, kind) {
            (3, STRUCTURE) => from.metadata(&mut found),
            (1 | 3 | 8.., _) => Err(UNKNOWN),
            _ => from.skip(kind, 1),
        })?;
        if found[..6].iter().any(|&number| number < 0) { Err(UNKNOWN) } else { Ok(found) }
    }

    fn metadata(&mut self, found: &mut Chunk) -> Result<()> {
        self.fields(|from, field, kind| match (field, kind) {
            (1 | 4, I32) => {
                found[if field == 1 { KIND } else { 2 }] = from.zigzag()?;
                Ok(())
            }
            (5 | 7 | 9 | 11, I64) => {
                found[field as usize / 2 + 1] = from.zigzag()?;
                Ok(())
            }
            (2, LIST) => {
                let (count, kind) = from.list()?;
                found[ENCODINGS] = 0;
                (0..count).try_for_each(|_| match (kind, from.zigzag()?) {
                    (I32, encoding @ 0..32) => {
                        found[ENCODINGS] |= 1 << encoding;
                        Ok(())
                    }
                    _ => Err(UNKNOWN),
                })
            }
            (16, STRUCTURE) => from.sizes(found),
            (1 | 2 | 4 | 5 | 7 | 9 | 11 | 16, _) => Err(UNKNOWN),
            _ => from.skip(kind, 1),
        })
    }

    /// Statistics of sizes, which pyarrow compares with the schema. Refused: of a repeated column.
    fn sizes(&mut self, found: &mut Chunk) -> Result<()> {
        let kind_of_chunk = found[KIND];
        self.fields(|from, field, kind| match (field, kind) {
            (1, I64) if kind_of_chunk == BYTE_ARRAY => from.zigzag().map(drop),
            (2 | 3, LIST) => {
                let (count, kind) = from.list()?;
                if kind != I64 || field == 2 && count > 1 {
                    return Err(UNKNOWN);
                }
                if field == 3 {
                    found[LEVELS] = if count == 0 { -1 } else { count as i64 };
                }
                (0..count).try_for_each(|_| from.zigzag().map(drop))
            }
            _ => Err(UNKNOWN),
        })
    }

    /// Calls `each` for each structure of a list; it must pass it.
    fn structures(&mut self, mut each: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        let (count, kind) = self.list()?;
        if count > 0 && kind != STRUCTURE {
            return Err(UNKNOWN);
        }
        (0..count).try_for_each(|_| each(self))
    }

    /// The number and wire type of a list's items, each of which takes a byte or more.
    fn list(&mut self) -> Result<(usize, u8)> {
        let head = self.byte()?;
        let count = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
        match usize::try_from(count) {
            Ok(count) if count <= self.data.len() - self.at => Ok((count, head & 15)),
            _ => Err(BEYOND),
        }
    }

    /// The number and wire type of the next field; None: the structure ends.
    fn field(&mut self, before: i64) -> Result<Option<(i64, u8)>> {
        let head = self.byte()?;
        if head == 0 {
            return Ok(None);
        }
        let number = if head >> 4 == 0 { self.zigzag()? } else { before + i64::from(head >> 4) };
        if !(1..=FIELD_MAX).contains(&number) || number <= before {
            return Err(UNKNOWN);
        }
        Ok(Some((number, head & 15)))
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Result<()> {
        if depth > DEEPEST {
            return Err(UNKNOWN);
        }
        match kind {
            1 | 2 => Ok(()),
            3 => self.pass(1),
            4..=6 => self.zigzag().map(drop),
            7 => self.pass(8),
            8 => {
                let size = self.varint()?;
                self.pass(usize::try_from(size).map_err(|_| BEYOND)?)
            }
            LIST => {
                let (count, kind) = self.list()?;
                match kind {
                    1 | 2 => self.pass(count),
                    _ => (0..count).try_for_each(|_| self.skip(kind, depth + 1)),
                }
            }
            STRUCTURE => self.fields(|from, _, kind| from.skip(kind, depth + 1)),
            _ => Err(UNKNOWN),
        }
    }

    fn pass(&mut self, size: usize) -> Result<()> {
        if size > self.data.len() - self.at {
            return Err(BEYOND);
        }
        self.at += size;
        Ok(())
    }

    fn byte(&mut self) -> Result<u8> {
        let found = *self.data.get(self.at).ok_or(BEYOND)?;
        self.at += 1;
        Ok(found)
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for place in 0..9 {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << (7 * place);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(&"a number of more than 63 bits")
    }

    fn zigzag(&mut self) -> Result<i64> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }
}

/// Run lengths and groups of eight numbers of some bits, in turns.
#[derive(Default)]
pub struct Hybrid {
    at: usize,
    end: usize,
    width: usize,
    left: usize,
    /// In a run of one value: the value; else the next bit.
    value: Option<u32>,
    bit: usize,
}

impl Hybrid {
    pub fn new(at: usize, end: usize, width: usize) -> Self {
        Hybrid { at, end, width, ..Hybrid::default() }
    }

    pub fn bits(at: usize, end: usize) -> Self {
        Hybrid { at: end, end, width: 1, left: 8 * (end - at), value: None, bit: 8 * at }
    }

    fn run(&mut self, page: &[u8]) -> Result<()> {
        let mut head = 0;
        for place in 0..5 {
            let byte = *page[..self.end].get(self.at).ok_or(SHORT)?;
            self.at += 1;
            head |= usize::from(byte & 0x7f) << (7 * place);
            if byte < 0x80 {
                break;
            }
            if place == 4 {
                return Err(LONG);
            }
        }
        if head > i32::MAX as usize {
            return Err(LONG);
        }
        let packed = head & 1 == 1;
        let size = if packed { (head >> 1) * self.width } else { self.width.div_ceil(8) };
        if head < 2 || size > self.end - self.at {
            return Err(SHORT);
        }
        let bytes = &page[self.at..self.at + size];
        if packed {
            (self.bit, self.value, self.left) = (8 * self.at, None, (head >> 1) * 8);
        } else {
            let value = bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
            if value >> self.width != 0 {
                return Err(&"a value of more bits");
            }
            (self.value, self.left) = (Some(value as u32), head >> 1);
        }
        self.at += size;
        Ok(())
    }

    /// Whether the next `count` are the number one.
    pub fn is_one(&mut self, page: &[u8], count: usize) -> Result<bool> {
        if self.left == 0 {
            self.run(page)?;
        }
        let found = self.value == Some(1) && self.left >= count;
        if found {
            self.left -= count;
        }
        Ok(found)
    }

    pub fn take(&mut self, page: &[u8], count: usize, into: &mut Vec<u32>) -> Result<()> {
        into.clear();
        into.try_reserve(count).map_err(|_| NO_MEMORY)?;
        while into.len() < count {
            if self.left == 0 {
                self.run(page)?;
            }
            let some = self.left.min(count - into.len());
            if let Some(value) = self.value {
                into.resize(into.len() + some, value);
            } else {
                self.unpack(page, some, into)?;
            }
            self.left -= some;
        }
        Ok(())
    }

    fn unpack(&mut self, page: &[u8], count: usize, into: &mut Vec<u32>) -> Result<()> {
        let (start, width, mask) = (self.bit, self.width, (1u64 << self.width) - 1);
        let last = (start + width * count) / 8 + 8;
        let page = page.get(..last).ok_or(SHORT)?;
        into.extend((0..count).map(|number| {
            let bit = start + number * width;
            let word = page[bit / 8..].first_chunk().copied().unwrap_or_default();
            (u64::from_le_bytes(word) >> (bit % 8) & mask) as u32
        }));
        self.bit += count * width;
        Ok(())
    }
}
