//! The frames: `varint(id) varint(connID) varint(type) [varint(deadline)] payload`, one per binary message.
//!
//! Numbers are zig-zag LEB128 as Go's `binary.PutVarint` writes them. Only Data and Connect have a `deadline`; it
//! is always 15000 and never used, but without it old peers would misread the payload.

use bytes::{Buf, Bytes};

/// The deadline in every Data and Connect frame, in milliseconds.
const DEADLINE_MS: i64 = 15_000;
const MAX_CONNECT: usize = 266;
const MAX_ERROR: usize = 100;
/// The error text of a regular end.
pub const EOF: &str = "EOF";

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// A sequence number, which is not used.
    pub id: i64,
    /// The connection within the session; 0 in frames about the session itself.
    pub conn: i64,
    pub body: Body,
}

/// The type and payload of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    Data(Bytes),
    Connect {
        proto: String,
        address: String,
    },
    /// The connection ended; [`EOF`] means regularly.
    Error(String),
    /// Another replica of the server can reach this client too.
    AddClient(String),
    RemoveClient(String),
    /// The receiver's buffer is full.
    Pause,
    Resume,
    /// All connections that the client knows, ascending.
    Sync(Vec<u64>),
    /// An unknown type, which must be ignored.
    Unknown(i64),
}

/// Why bytes are not a valid frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("the frame ends within a number")]
    Truncated,
    #[error("a number has more than 64 bits")]
    Overflow,
    #[error("the payload of Connect is not <proto>/<address>")]
    BadConnect,
    #[error("the payload of SyncConnections is not a multiple of 8 bytes")]
    BadSync,
}

impl Frame {
    pub fn encode(&self) -> Vec<u8> {
        let (kind, payload): (i64, &[u8]) = match &self.body {
            Body::Data(bytes) => (1, bytes),
            Body::Connect { .. } => (2, &[]),
            Body::Error(text) => (3, text.as_bytes()),
            Body::AddClient(text) => (4, text.as_bytes()),
            Body::RemoveClient(text) => (5, text.as_bytes()),
            Body::Pause => (6, &[]),
            Body::Resume => (7, &[]),
            Body::Sync(_) => (8, &[]),
            Body::Unknown(kind) => (*kind, &[]),
        };
        let mut out = Vec::with_capacity(24 + payload.len());
        put_varint(&mut out, self.id);
        put_varint(&mut out, self.conn);
        put_varint(&mut out, kind);
        match &self.body {
            Body::Data(_) => put_varint(&mut out, DEADLINE_MS),
            Body::Connect { proto, address } => {
                put_varint(&mut out, DEADLINE_MS);
                out.extend_from_slice(proto.as_bytes());
                out.push(b'/');
                out.extend_from_slice(address.as_bytes());
            }
            Body::Sync(ids) => ids.iter().for_each(|id| out.extend_from_slice(&id.to_le_bytes())),
            _ => {}
        }
        out.extend_from_slice(payload);
        out
    }

    /// Decodes one message. The payload of Data is a slice of `message`, not a copy.
    pub fn decode(mut message: Bytes) -> Result<Self, FrameError> {
        let id = get_varint(&mut message)?;
        let conn = get_varint(&mut message)?;
        let kind = get_varint(&mut message)?;
        let body = match kind {
            1 => {
                get_varint(&mut message)?;
                Body::Data(message)
            }
            2 => {
                get_varint(&mut message)?;
                let text = text(&message, MAX_CONNECT);
                let (proto, address) = text.split_once('/').ok_or(FrameError::BadConnect)?;
                Body::Connect { proto: proto.into(), address: address.into() }
            }
            3 => Body::Error(text(&message, MAX_ERROR)),
            4 => Body::AddClient(text(&message, MAX_ERROR)),
            5 => Body::RemoveClient(text(&message, MAX_ERROR)),
            6 => Body::Pause,
            7 => Body::Resume,
            8 if !message.len().is_multiple_of(8) => return Err(FrameError::BadSync),
            8 => {
                let mut ids = Vec::with_capacity(message.len() / 8);
                while message.has_remaining() {
                    ids.push(message.get_u64_le());
                }
                Body::Sync(ids)
            }
            other => Body::Unknown(other),
        };
        Ok(Self { id, conn, body })
    }
}

fn text(bytes: &[u8], limit: usize) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(limit)]).into_owned()
}

fn put_varint(out: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    while rest >= 0x80 {
        out.push((rest as u8) | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

fn get_varint(bytes: &mut Bytes) -> Result<i64, FrameError> {
    let mut value: u64 = 0;
    for shift in (0..70).step_by(7) {
        if !bytes.has_remaining() {
            return Err(FrameError::Truncated);
        }
        let byte = bytes.get_u8();
        if shift == 63 && byte > 1 {
            return Err(FrameError::Overflow);
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok((value >> 1) as i64 ^ -((value & 1) as i64));
        }
    }
    Err(FrameError::Overflow)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(id: i64, conn: i64, body: Body) -> Frame {
        Frame { id, conn, body }
    }

    /// access#1.
    #[test]
    fn access_check_1_the_published_vectors_match_both_ways() {
        let connect = Body::Connect { proto: "tcp".into(), address: "10.43.0.1:443".into() };
        let vectors: Vec<(Frame, &[u8])> = vec![
            (frame(1, 2, connect), b"\x02\x04\x04\xb0\xea\x01tcp/10.43.0.1:443"),
            (frame(2, 2, Body::Data(Bytes::from_static(b"GET"))), b"\x04\x04\x02\xb0\xea\x01GET"),
            (frame(3, 2, Body::Error(EOF.into())), b"\x06\x04\x06EOF"),
            (frame(4, 0, Body::AddClient("c-m-abc/77".into())), b"\x08\x00\x08c-m-abc/77"),
            (frame(6, 2, Body::Pause), b"\x0c\x04\x0c"),
            (frame(7, 2, Body::Resume), b"\x0e\x04\x0e"),
            (frame(8, 0, Body::Sync(vec![2, 300])), b"\x10\x00\x10\x02\0\0\0\0\0\0\0\x2c\x01\0\0\0\0\0\0"),
        ];
        for (frame, bytes) in vectors {
            assert_eq!(frame.encode(), bytes, "{frame:?}");
            assert_eq!(Frame::decode(Bytes::copy_from_slice(bytes)).unwrap(), frame);
        }
    }

    #[test]
    fn varints_are_encoded_as_in_go() {
        for (value, bytes) in [(1, &[2][..]), (-1, &[1]), (64, &[0x80, 1]), (0, &[0])] {
            let mut out = vec![];
            put_varint(&mut out, value);
            assert_eq!(out, bytes);
        }
        let mut out = vec![];
        put_varint(&mut out, i64::MAX);
        assert_eq!(out.len(), 10);
        assert_eq!(get_varint(&mut Bytes::from(out)).unwrap(), i64::MAX);
        assert_eq!(get_varint(&mut Bytes::from_static(&[0xff; 10])), Err(FrameError::Overflow));
    }

    /// access#4 and access#5, the parts that concern bytes.
    #[test]
    fn access_checks_4_and_5_unknown_types_are_decoded_and_an_invalid_sync_is_rejected() {
        let mut bytes = frame(1, 2, Body::Unknown(99)).encode();
        bytes.extend_from_slice(b"whatever");
        assert_eq!(Frame::decode(bytes.into()).unwrap().body, Body::Unknown(99));
        let mut sync = frame(1, 0, Body::Sync(vec![1])).encode();
        sync.extend_from_slice(&[0; 4]);
        assert_eq!(Frame::decode(sync.into()), Err(FrameError::BadSync));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(frame) = Frame::decode(bytes.into()) {
                let again = Frame::decode(frame.encode().into()).unwrap();
                // Texts are truncated and made valid UTF-8, which can lengthen them, so compare the rest.
                prop_assert_eq!((again.id, again.conn), (frame.id, frame.conn));
            }
        }

        #[test]
        fn data_round_trips(id in any::<i64>(), conn in any::<i64>(), data in proptest::collection::vec(any::<u8>(), 0..300)) {
            let frame = Frame { id, conn, body: Body::Data(data.into()) };
            prop_assert_eq!(Frame::decode(frame.encode().into()).unwrap(), frame);
        }
    }
}
