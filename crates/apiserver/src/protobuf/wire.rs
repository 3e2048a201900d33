//! The protobuf wire format: tags, varints, lengths.

use super::ProtobufError;

/// Reads the fields of one message.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

/// A field in wire format.
pub(super) struct RawField<'a> {
    pub(super) number: u32,
    pub(super) value: WireValue<'a>,
}

#[derive(Clone, Copy)]
pub(super) enum WireValue<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next field; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<RawField<'a>>, ProtobufError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_| ProtobufError::Malformed("field number"))?;
        let value = match tag & 7 {
            0 => WireValue::Varint(self.varint()?),
            1 => WireValue::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => {
                let len = self.varint()?;
                let len = usize::try_from(len).map_err(|_| ProtobufError::Malformed("length"))?;
                WireValue::Bytes(self.take(len)?)
            }
            5 => WireValue::Fixed32(u32::from_le_bytes(self.array()?)),
            _ => return Err(ProtobufError::Malformed("wire type")),
        };
        Ok(Some(RawField { number, value }))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn varint(&mut self) -> Result<u64, ProtobufError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(ProtobufError::Malformed("varint"))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtobufError> {
        self.take(N)?.try_into().map_err(|_| ProtobufError::Malformed("fixed number"))
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], ProtobufError> {
        let (taken, rest) =
            self.rest.split_at_checked(len).ok_or(ProtobufError::Malformed("it ends too early"))?;
        self.rest = rest;
        Ok(taken)
    }
}

impl<'a> RawField<'a> {
    pub(super) fn bytes(&self) -> Result<&'a [u8], ProtobufError> {
        match self.value {
            WireValue::Bytes(bytes) => Ok(bytes),
            _ => Err(ProtobufError::Malformed("a number where bytes belong")),
        }
    }

    pub(super) fn text(&self) -> Result<String, ProtobufError> {
        let text =
            std::str::from_utf8(self.bytes()?).map_err(|_| ProtobufError::Malformed("text is not UTF-8"))?;
        Ok(text.to_owned())
    }

    pub(super) fn number(&self) -> Result<u64, ProtobufError> {
        match self.value {
            WireValue::Varint(number) | WireValue::Fixed64(number) => Ok(number),
            WireValue::Fixed32(number) => Ok(number.into()),
            WireValue::Bytes(_) => Err(ProtobufError::Malformed("bytes where a number belongs")),
        }
    }
}
