//! Arrow buffers of one column, filled value by value from Avro.

use crate::cursor::{Bad, Cursor, Result};

const NO_MEMORY: Bad = &"no memory";
const TOO_LONG: Bad = &"more than 2 GiB in one column";
const NO_SYMBOL: Bad = &"a symbol that the enum does not have";
/// Bytes in Arrow that one byte of data may become without being counted.
const SMALL: usize = 16;
const MILLIS_A_DAY: i32 = 86_400_000;
const MICROS_A_DAY: i64 = 86_400_000_000;

/// Appends without ending the process where memory is not to be had.
#[inline(always)]
fn push<T>(values: &mut Vec<T>, value: T) -> Result<()> {
    if values.len() == values.capacity() {
        values.try_reserve(1).map_err(|_| NO_MEMORY)?;
    }
    values.push(value);
    Ok(())
}

#[inline(always)]
fn append(values: &mut Vec<u8>, more: &[u8]) -> Result<()> {
    values.try_reserve(more.len()).map_err(|_| NO_MEMORY)?;
    values.extend_from_slice(more);
    Ok(())
}

/// Bits in Arrow's order, and how many of them are unset.
#[derive(Default)]
pub struct Bits {
    pub bytes: Vec<u8>,
    pub len: usize,
    pub unset: usize,
}

impl Bits {
    #[inline]
    pub fn push(&mut self, value: bool) -> Result<()> {
        let bit = u8::from(value) << (self.len % 8);
        match self.bytes.last_mut() {
            Some(last) if !self.len.is_multiple_of(8) => *last |= bit,
            _ => push(&mut self.bytes, bit)?,
        }
        self.len += 1;
        self.unset += usize::from(!value);
        Ok(())
    }

    /// As `push`, but the bytes are made at the first unset bit only: most columns have none.
    #[inline(always)]
    fn push_valid(&mut self, value: bool) -> Result<()> {
        if self.unset > 0 {
            return self.push(value);
        }
        if value {
            self.len += 1;
            return Ok(());
        }
        let size = self.len.div_ceil(8);
        self.bytes.try_reserve(size + 1).map_err(|_| NO_MEMORY)?;
        self.bytes.resize(size, 0xff);
        if let (Some(last), rest @ 1..) = (self.bytes.last_mut(), self.len % 8) {
            *last = (1 << rest) - 1;
        }
        self.push(false)
    }
}

/// Ends of texts, bytes, lists or maps: one offset more than values.
pub struct Offsets(pub Vec<i32>);

impl Offsets {
    #[inline(always)]
    fn push(&mut self, end: usize) -> Result<()> {
        push(&mut self.0, i32::try_from(end).map_err(|_| TOO_LONG)?)
    }
}

pub struct Text {
    pub offsets: Offsets,
    pub data: Vec<u8>,
}

impl Text {
    #[inline]
    fn push(&mut self, value: &[u8]) -> Result<()> {
        append(&mut self.data, value)?;
        self.offsets.push(self.data.len())
    }

    /// Each value is UTF-8 where all together are, and each begins with a character.
    fn check(&self) -> Result<()> {
        let Ok(text) = std::str::from_utf8(&self.data) else {
            return Err(&"text that is not UTF-8");
        };
        if self.offsets.0.iter().all(|&at| text.is_char_boundary(at as usize)) {
            Ok(())
        } else {
            Err(&"text that ends within a character")
        }
    }
}

pub enum Values {
    Bool(Bits),
    Int(Vec<i32>),
    Long(Vec<i64>),
    Float(Vec<u32>),
    Double(Vec<u64>),
    String(Text),
    Bytes(Text),
    Fixed {
        size: usize,
        data: Vec<u8>,
    },
    /// `size`: of a fixed type; 0: bytes of any length. `limit`: the first number with too many digits.
    Decimal {
        size: usize,
        limit: i128,
        data: Vec<i128>,
    },
    Enum {
        symbols: Vec<Vec<u8>>,
        text: Text,
    },
    TimeMillis(Vec<i32>),
    TimeMicros(Vec<i64>),
    List {
        offsets: Offsets,
        item: Box<Column>,
    },
    Map {
        offsets: Offsets,
        key: Box<Column>,
        value: Box<Column>,
    },
    Record(Vec<Column>),
}

pub struct Column {
    /// The place of null in the union, which has two branches; None: no union.
    null_at: Option<u8>,
    /// Whether values may be null: it is a union, or a record above it is one.
    nullable: bool,
    /// Bytes of the shortest value in Avro.
    pub smallest: usize,
    /// Bytes of a null in Arrow.
    width: usize,
    pub len: usize,
    pub valid: Bits,
    pub values: Values,
}

impl Column {
    /// A column of values that come from elsewhere.
    pub fn of(nullable: bool, values: Values) -> Self {
        Column { null_at: None, nullable, smallest: 0, width: 0, len: 0, valid: Bits::default(), values }
    }

    /// Counts rows that have a value where their level is one. None: all have.
    pub fn push_valid(&mut self, levels: Option<&[u32]>, rows: usize) -> Result<()> {
        self.len += rows;
        match levels {
            None if !self.nullable || self.valid.unset == 0 => {
                self.valid.len += rows;
                Ok(())
            }
            None => (0..rows).try_for_each(|_| self.valid.push(true)),
            Some(levels) => levels.iter().try_for_each(|&level| self.valid.push_valid(level == 1)),
        }
    }

    pub fn decode(&mut self, from: &mut Cursor) -> Result<()> {
        if let Some(place) = self.null_at
            && from.is_branch(place)?
        {
            if self.width > SMALL {
                from.spend(self.width)?;
            }
            return self.push_null();
        }
        if self.nullable {
            self.valid.push_valid(true)?;
        }
        self.len += 1;
        match &mut self.values {
            Values::Bool(bits) => bits.push(from.bool()?),
            Values::Int(data) => push(data, from.int()?),
            Values::Long(data) => push(data, from.long()?),
            Values::Float(data) => push(data, u32::from_le_bytes(from.array()?)),
            Values::Double(data) => push(data, u64::from_le_bytes(from.array()?)),
            Values::String(text) | Values::Bytes(text) => text.push(from.bytes()?),
            Values::Fixed { size, data } => append(data, from.take(*size)?),
            Values::Decimal { size, limit, data } => {
                let bytes = if *size > 0 { from.take(*size)? } else { from.bytes()? };
                push(data, decimal(bytes, *limit)?)
            }
            Values::Enum { symbols, text } => {
                let symbol = usize::try_from(from.int()?).ok().and_then(|at| symbols.get(at));
                let symbol = symbol.ok_or(NO_SYMBOL)?;
                if symbol.len() > SMALL {
                    from.spend(symbol.len())?;
                }
                text.push(symbol)
            }
            Values::TimeMillis(data) => match from.int()? {
                time @ 0..MILLIS_A_DAY => push(data, time),
                _ => Err(&"a time of no day"),
            },
            Values::TimeMicros(data) => match from.long()? {
                time @ 0..MICROS_A_DAY => push(data, time),
                _ => Err(&"a time of no day"),
            },
            Values::List { offsets, item } => {
                loop {
                    let count = from.run(item.smallest)?;
                    if count == 0 {
                        break;
                    }
                    for _ in 0..count {
                        item.decode(from)?;
                    }
                }
                offsets.push(item.len)
            }
            Values::Map { offsets, key, value } => {
                loop {
                    let count = from.run(1 + value.smallest)?;
                    if count == 0 {
                        break;
                    }
                    for _ in 0..count {
                        key.decode(from)?;
                        value.decode(from)?;
                    }
                }
                offsets.push(key.len)
            }
            Values::Record(fields) => fields.iter_mut().try_for_each(|field| field.decode(from)),
        }
    }

    /// Passes a value of a column that nobody asked for.
    pub fn skip(&self, from: &mut Cursor) -> Result<()> {
        if let Some(place) = self.null_at
            && from.is_branch(place)?
        {
            return Ok(());
        }
        match &self.values {
            Values::Bool(_) => from.bool().map(drop),
            Values::Int(_) | Values::TimeMillis(_) => from.int().map(drop),
            Values::Long(_) | Values::TimeMicros(_) => from.long().map(drop),
            Values::Float(_) => from.take(4).map(drop),
            Values::Double(_) => from.take(8).map(drop),
            Values::String(_) | Values::Bytes(_) | Values::Decimal { size: 0, .. } => from.bytes().map(drop),
            Values::Fixed { size, .. } | Values::Decimal { size, .. } => from.take(*size).map(drop),
            Values::Enum { symbols, .. } => match usize::try_from(from.int()?) {
                Ok(at) if at < symbols.len() => Ok(()),
                _ => Err(NO_SYMBOL),
            },
            Values::List { item, .. } => loop {
                match from.run(item.smallest)? {
                    0 => break Ok(()),
                    count => (0..count).try_for_each(|_| item.skip(from))?,
                }
            },
            Values::Map { key, value, .. } => loop {
                match from.run(1 + value.smallest)? {
                    0 => break Ok(()),
                    count => (0..count).try_for_each(|_| {
                        key.skip(from)?;
                        value.skip(from)
                    })?,
                }
            },
            Values::Record(fields) => fields.iter().try_for_each(|field| field.skip(from)),
        }
    }

    fn push_null(&mut self) -> Result<()> {
        if self.nullable {
            self.valid.push_valid(false)?;
        }
        self.len += 1;
        match &mut self.values {
            Values::Bool(bits) => bits.push(false),
            Values::Int(data) | Values::TimeMillis(data) => push(data, 0),
            Values::Long(data) | Values::TimeMicros(data) => push(data, 0),
            Values::Float(data) => push(data, 0),
            Values::Double(data) => push(data, 0),
            Values::String(text) | Values::Bytes(text) | Values::Enum { text, .. } => text.push(b""),
            Values::Fixed { size, data } => {
                let end = data.len() + *size;
                data.try_reserve(*size).map_err(|_| NO_MEMORY)?;
                data.resize(end, 0);
                Ok(())
            }
            Values::Decimal { data, .. } => push(data, 0),
            Values::List { offsets, item } => offsets.push(item.len),
            Values::Map { offsets, key, .. } => offsets.push(key.len),
            Values::Record(fields) => fields.iter_mut().try_for_each(Column::push_null),
        }
    }

    /// Takes memory for `count` values, of which each has at least one byte of data; texts grow as they come.
    pub fn reserve(&mut self, count: usize) -> Result<()> {
        match &mut self.values {
            Values::Bool(bits) => bits.bytes.try_reserve(count / 8 + 1),
            Values::Int(data) | Values::TimeMillis(data) => data.try_reserve(count),
            Values::Long(data) | Values::TimeMicros(data) => data.try_reserve(count),
            Values::Float(data) => data.try_reserve(count),
            Values::Double(data) => data.try_reserve(count),
            Values::String(text) | Values::Bytes(text) | Values::Enum { text, .. } => text.offsets.0.try_reserve(count),
            Values::Decimal { data, .. } => data.try_reserve(count),
            _ => Ok(()),
        }
        .map_err(|_| NO_MEMORY)
    }

    /// Checks what is cheaper to check of all values at once.
    pub fn finish(&self) -> Result<()> {
        match &self.values {
            Values::String(text) => text.check(),
            Values::List { item, .. } => item.finish(),
            Values::Map { key, value, .. } => {
                key.finish()?;
                value.finish()
            }
            Values::Record(fields) => fields.iter().try_for_each(Column::finish),
            _ => Ok(()),
        }
    }
}

/// A big-endian number of up to 16 bytes.
#[inline]
fn decimal(bytes: &[u8], limit: i128) -> Result<i128> {
    let (Some(&first), true) = (bytes.first(), bytes.len() <= 16) else {
        return Err(&"a decimal of no bytes, or of more than 16");
    };
    let mut whole = [if first < 0x80 { 0 } else { 0xff }; 16];
    whole[16 - bytes.len()..].copy_from_slice(bytes);
    let value = i128::from_be_bytes(whole);
    if -limit < value && value < limit { Ok(value) } else { Err(&"a decimal of more digits than its type has") }
}

const DEEPEST: usize = 100;
const LARGEST: usize = 4096;

/// Reads columns from the numbers in which `timeline/codec/avro_decode.py` puts a schema.
pub struct Program<'a> {
    pub numbers: std::slice::Iter<'a, i64>,
    pub symbols: &'a [Vec<Vec<u8>>],
}

impl Program<'_> {
    fn next(&mut self) -> Result<i64> {
        self.numbers.next().copied().ok_or(&"a program that ends early")
    }

    fn size(&mut self) -> Result<usize> {
        usize::try_from(self.next()?).map_err(|_| -> Bad { &"a negative size in a program" })
    }

    pub fn column(&mut self, inherited: bool, depth: usize) -> Result<Column> {
        if depth > DEEPEST {
            return Err(&"a program that is too deep");
        }
        let null_at = match self.next()? {
            -1 => None,
            at @ 0..2 => Some(at as u8),
            _ => return Err(&"a union that is not known"),
        };
        let nullable = inherited || null_at.is_some();
        let values = self.values(nullable, depth)?;
        let (smallest, width) = match &values {
            Values::Float(_) => (4, 4),
            Values::Double(_) => (8, 8),
            Values::Fixed { size, .. } => (*size, *size),
            Values::Decimal { size, .. } => (*size.max(&1), 16),
            Values::Record(fields) => fields.iter().fold((0, 0), |(a, b), field| (a + field.smallest, b + field.width)),
            _ => (1, 8),
        };
        Ok(Column {
            null_at,
            nullable,
            smallest: if null_at.is_some() { 1 } else { smallest },
            width,
            len: 0,
            valid: Bits::default(),
            values,
        })
    }

    fn values(&mut self, nullable: bool, depth: usize) -> Result<Values> {
        Ok(match self.next()? {
            0 => Values::Bool(Bits::default()),
            1 => Values::Int(vec![]),
            2 => Values::Long(vec![]),
            3 => Values::Float(vec![]),
            4 => Values::Double(vec![]),
            5 => Values::String(text()),
            6 => Values::Bytes(text()),
            7 => {
                let (size, data) = (self.size()?, vec![]);
                if !(1..=LARGEST).contains(&size) {
                    return Err(&"a fixed type that is not known");
                }
                Values::Fixed { size, data }
            }
            8 => {
                let (size, digits) = (self.size()?, self.size()?);
                if size > 16 || !(1..39).contains(&digits) {
                    return Err(&"a decimal that is not known");
                }
                let (limit, data) = (10i128.pow(digits as u32), vec![]);
                Values::Decimal { size, limit, data }
            }
            9 => {
                let at = self.size()?;
                let symbols = self.symbols.get(at).ok_or(&"no symbols")?.clone();
                Values::Enum { symbols, text: text() }
            }
            10 => Values::TimeMillis(vec![]),
            11 => Values::TimeMicros(vec![]),
            12 => {
                let (offsets, item) = (Offsets(vec![0]), Box::new(self.column(false, depth + 1)?));
                Values::List { offsets, item }
            }
            13 => {
                let key = Box::new(self.column(false, depth + 1)?);
                let value = Box::new(self.column(false, depth + 1)?);
                let offsets = Offsets(vec![0]);
                Values::Map { offsets, key, value }
            }
            14 => {
                let count = self.size()?;
                let fields = (0..count).map(|_| self.column(nullable, depth + 1));
                Values::Record(fields.collect::<Result<_>>()?)
            }
            _ => return Err(&"a type that is not known"),
        })
    }
}

fn text() -> Text {
    let (offsets, data) = (Offsets(vec![0]), vec![]);
    Text { offsets, data }
}
