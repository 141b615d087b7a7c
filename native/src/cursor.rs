//! Reads Avro's binary encoding from bytes that nobody vouches for: each length is checked before it is used.

/// Why a block is not decoded here. The caller then asks another decoder, whose words reach the user.
/// A thin pointer, so that results stay in registers.
pub type Bad = &'static &'static str;
pub type Result<T> = std::result::Result<T, Bad>;

const NOT_INT: Bad = &"an int of more than 32 bits";
const BEYOND: Bad = &"a length beyond the end";
const NEGATIVE: Bad = &"a negative length";

pub struct Cursor<'a> {
    data: &'a [u8],
    at: usize,
    /// Bytes of nulls that may still be made of few bytes of data: see `spend`.
    pub allowance: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(data: &'a [u8], allowance: usize) -> Self {
        Cursor { data, at: 0, allowance }
    }

    /// Counts bytes that a null takes in Arrow: a record of a thousand fields is null in one byte of data.
    pub fn spend(&mut self, bytes: usize) -> Result<()> {
        self.allowance = self.allowance.checked_sub(bytes).ok_or(&"nulls that take much more memory than data")?;
        Ok(())
    }

    pub fn left(&self) -> usize {
        self.data.len() - self.at
    }

    #[inline(always)]
    pub fn take(&mut self, size: usize) -> Result<&'a [u8]> {
        let rest = &self.data[self.at..];
        if size > rest.len() {
            return Err(BEYOND);
        }
        self.at += size;
        Ok(&rest[..size])
    }

    #[inline(always)]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut found = [0; N];
        found.copy_from_slice(self.take(N)?);
        Ok(found)
    }

    /// A zigzag number of up to ten bytes.
    #[inline(always)]
    pub fn long(&mut self) -> Result<i64> {
        match self.data.get(self.at) {
            Some(&byte) if byte < 0x80 => {
                self.at += 1;
                Ok(zigzag(u64::from(byte)))
            }
            _ => self.long_of_many(),
        }
    }

    #[inline(never)]
    fn long_of_many(&mut self) -> Result<i64> {
        let rest = &self.data[self.at..];
        let mut value = 0u64;
        for (place, &byte) in rest.iter().take(10).enumerate() {
            if place == 9 && byte > 1 {
                return Err(&"a number of more than 64 bits");
            }
            value |= u64::from(byte & 0x7f) << (7 * place);
            if byte < 0x80 {
                self.at += place + 1;
                return Ok(zigzag(value));
            }
        }
        Err(BEYOND)
    }

    /// Whether the branch of a union of two is the one at this place.
    #[inline(always)]
    pub fn is_branch(&mut self, place: u8) -> Result<bool> {
        match self.array()? {
            [branch @ (0 | 2)] => Ok(branch == 2 * place),
            _ => Err(&"a branch that the union does not have"),
        }
    }

    #[inline]
    pub fn int(&mut self) -> Result<i32> {
        i32::try_from(self.long()?).map_err(|_| NOT_INT)
    }

    /// Text or bytes with their length in front.
    #[inline(always)]
    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let size = self.long()?;
        self.take(usize::try_from(size).map_err(|_| NEGATIVE)?)
    }

    #[inline]
    pub fn bool(&mut self) -> Result<bool> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(&"a boolean of another byte than 0 and 1"),
        }
    }

    /// The number of values in the next run of an array or a map, of which each takes `smallest` bytes; 0: the end.
    pub fn run(&mut self, smallest: usize) -> Result<usize> {
        let count = self.long()?;
        // A negative count is followed by the size of the run: no writer of Hudi does so.
        let count = usize::try_from(count).map_err(|_| NEGATIVE)?;
        if count > self.left() / smallest.max(1) {
            return Err(&"more values than fit into the bytes");
        }
        Ok(count)
    }
}

#[inline]
fn zigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}
