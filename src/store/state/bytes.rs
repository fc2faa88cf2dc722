//! Numbers, texts and times as bytes. What they mean is not known here.

use super::StoreTime;

/// How far the clock of the rows is behind the store's clock. The clock of the rows stops while no process runs the
/// store, so that neither the downtime nor a change of the system's clock meanwhile shortens anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Downtime(u64);

impl Downtime {
    /// The downtime until now, from what the two clocks show.
    #[must_use]
    pub fn between(of_rows: StoreTime, now: StoreTime) -> Self {
        Self(now.unix_us().saturating_sub(of_rows.unix_us()))
    }

    /// What the clock of the rows shows.
    #[must_use]
    pub fn clock_of_rows(self, now: StoreTime) -> StoreTime {
        StoreTime::from_unix_us(now.unix_us().saturating_sub(self.0))
    }
}

/// Why bytes could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRow {
    /// A format that this program does not read.
    #[error(
        "another version of Leasehold has written one of its rows in format {written}, and this one reads format {read}"
    )]
    Version {
        /// The format of the row.
        written: u8,
        /// The format that this program reads.
        read: u8,
    },
    /// Bytes that no version writes, or that refer to a row that is missing.
    #[error("one of its rows is damaged")]
    Damaged,
}

/// Writes values one after the other.
pub(super) struct Encoder {
    bytes: Vec<u8>,
    downtime: Downtime,
}

impl Encoder {
    pub(super) fn new(version: u8, downtime: Downtime) -> Self {
        Self {
            bytes: vec![version],
            downtime,
        }
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.bytes
    }

    pub(super) fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    pub(super) fn flag(&mut self, flag: bool) {
        self.byte(flag.into());
    }

    /// A number that is often small: seven bits in each byte, and a bit that says whether there are more.
    pub(super) fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.byte((number & 0x7f) as u8 | 0x80);
            number >>= 7;
        }
        self.byte(number as u8);
    }

    /// Bytes whose number the reader knows.
    pub(super) fn fixed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.fixed(text.as_bytes());
    }

    /// A time that may not come sooner because of a downtime.
    pub(super) fn time(&mut self, time: StoreTime) {
        self.number(self.downtime.clock_of_rows(time).unix_us());
    }

    /// A value or a zero; a value must not begin with a zero.
    pub(super) fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match value {
            Some(value) => write(self, value),
            None => self.byte(0),
        }
    }
}

/// Reads values in the order in which they were written.
pub(super) struct Decoder<'a> {
    bytes: &'a [u8],
    downtime: Downtime,
}

impl<'a> Decoder<'a> {
    /// Reads the values of a row of this version.
    pub(super) fn new(
        version: u8,
        bytes: &'a [u8],
        downtime: Downtime,
    ) -> Result<Self, InvalidRow> {
        let mut decoder = Self { bytes, downtime };
        match decoder.byte()? {
            written if written == version => Ok(decoder),
            written => Err(InvalidRow::Version {
                written,
                read: version,
            }),
        }
    }

    /// Fails unless everything has been read.
    pub(super) fn finish(&self) -> Result<(), InvalidRow> {
        match self.bytes {
            [] => Ok(()),
            [..] => Err(InvalidRow::Damaged),
        }
    }

    pub(super) fn byte(&mut self) -> Result<u8, InvalidRow> {
        let (first, rest) = self.bytes.split_first().ok_or(InvalidRow::Damaged)?;
        self.bytes = rest;
        Ok(*first)
    }

    pub(super) fn flag(&mut self) -> Result<bool, InvalidRow> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(InvalidRow::Damaged),
        }
    }

    pub(super) fn number(&mut self) -> Result<u64, InvalidRow> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(InvalidRow::Damaged)
    }

    pub(super) fn fixed<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], InvalidRow> {
        let (first, rest) = self.bytes.split_first_chunk().ok_or(InvalidRow::Damaged)?;
        self.bytes = rest;
        Ok(*first)
    }

    pub(super) fn text(&mut self) -> Result<&'a str, InvalidRow> {
        let length = usize::try_from(self.number()?).map_err(|_| InvalidRow::Damaged)?;
        let found = self.bytes.split_at_checked(length);
        let (text, rest) = found.ok_or(InvalidRow::Damaged)?;
        self.bytes = rest;
        std::str::from_utf8(text).map_err(|_| InvalidRow::Damaged)
    }

    pub(super) fn time(&mut self) -> Result<StoreTime, InvalidRow> {
        Ok(StoreTime::from_unix_us(self.number()?).plus_us(self.downtime.0))
    }

    /// Reads a value unless there is a zero.
    pub(super) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, InvalidRow>,
    ) -> Result<Option<T>, InvalidRow> {
        match self.bytes.first() {
            Some(0) => self.byte().map(|_| None),
            Some(_) | None => read(self).map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let (downtime, now) = (Downtime(5), StoreTime::from_unix_us(1_000));
        let numbers = [0, 1, 0x7f, 0x80, 1 << 53, u64::MAX];
        let mut encoder = Encoder::new(1, downtime);
        numbers.iter().for_each(|number| encoder.number(*number));
        encoder.text("häuser");
        encoder.time(now);
        encoder.option(None::<u64>, Encoder::number);
        encoder.option(Some(3), Encoder::number);
        let bytes = encoder.finish();
        let later = Downtime(7);
        let mut decoder = Decoder::new(1, &bytes, later).expect("the version is known");
        assert_eq!(numbers.map(|_| decoder.number()), numbers.map(Ok));
        assert_eq!(decoder.text(), Ok("häuser"));
        assert_eq!(decoder.time(), Ok(StoreTime::from_unix_us(1_002)));
        assert_eq!(decoder.option(Decoder::number), Ok(None));
        assert_eq!(decoder.option(Decoder::number), Ok(Some(3)));
        assert_eq!(decoder.finish(), Ok(()));
        for length in 0..bytes.len() {
            let read = Decoder::new(1, &bytes[..length], later).and_then(|mut decoder| {
                for _ in numbers {
                    decoder.number()?;
                }
                decoder.text()?;
                decoder.time()?;
                decoder.option(Decoder::number)?;
                decoder.option(Decoder::number)
            });
            assert_eq!(read, Err(InvalidRow::Damaged), "{length} bytes");
        }
        assert_eq!(
            Decoder::new(2, &bytes, later).err(),
            Some(InvalidRow::Version {
                written: 1,
                read: 2
            })
        );
    }
}
