//! Messages between client, holder and init: a length (u32, little endian), JSON, and file descriptors as ancillary
//! data.
//!
//! Unix sockets are addressed through `/proc/self/fd/<directory>/…`, because the path of a data directory may be longer
//! than the 108 bytes of a socket address.

use std::{
    fs::File,
    io::{self, IoSlice, IoSliceMut, Read, Write},
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
};

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use serde::{Serialize, de::DeserializeOwned};

/// Larger frames are rejected. The largest message contains an install script.
const MAX_FRAME: usize = 16 << 20;
/// At most stdin, stdout and stderr are sent at once.
const MAX_FDS: usize = 3;

/// Sends one message and its descriptors.
pub(crate) fn send<T: Serialize>(stream: &UnixStream, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    if body.len() > MAX_FRAME {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "message is larger than 16 MiB"));
    }
    let header = (body.len() as u32).to_le_bytes();
    let raw: Vec<RawFd> = fds.iter().map(|fd| fd.as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let cmsgs = if raw.is_empty() { &[][..] } else { &rights[..] };
    // MSG_NOSIGNAL: if the peer has closed the connection, return an error instead of a signal.
    let sent =
        sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(&header)], cmsgs, MsgFlags::MSG_NOSIGNAL, None)?;
    let mut stream = stream;
    stream.write_all(&header[sent..])?;
    stream.write_all(&body)
}

/// Receives one message. Returns `None` if the peer closed the connection between messages.
pub(crate) fn recv<T: DeserializeOwned>(stream: &UnixStream) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut header = [0u8; 4];
    let mut space = nix::cmsg_space!([RawFd; MAX_FDS]);
    let mut fds = Vec::new();
    let got = {
        let mut iov = [IoSliceMut::new(&mut header)];
        let message =
            recvmsg::<()>(stream.as_raw_fd(), &mut iov, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
        for cmsg in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(received) = cmsg {
                fds.extend(received.into_iter().map(owned));
            }
        }
        message.bytes
    };
    if got == 0 {
        return Ok(None);
    }
    let mut stream = stream;
    stream.read_exact(&mut header[got..])?;
    let length = u32::from_le_bytes(header) as usize;
    if length > MAX_FRAME {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "frame is larger than 16 MiB"));
    }
    let mut body = Vec::new();
    stream.take(length as u64).read_to_end(&mut body)?;
    if body.len() != length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some((serde_json::from_slice(&body)?, fds)))
}

/// Connects to the socket at `path`, which can be of any length.
pub(crate) fn connect(path: &Path) -> io::Result<UnixStream> {
    through_directory(path, |short| UnixStream::connect(short))
}

/// Listens at `path`. Replaces a socket that a previous process left there.
pub(crate) fn listen(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => through_directory(path, |short| UnixListener::bind(short)),
    }
}

fn through_directory<T>(path: &Path, use_it: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let (Some(directory), Some(file)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let handle = File::open(directory)?;
    let mut short = PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd()));
    short.push(file);
    use_it(&short)
}

#[allow(unsafe_code)]
fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: the kernel has just created this descriptor in recvmsg, and nothing else uses it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn message_and_descriptor_arrive_together() {
        let (left, right) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"x").unwrap();
        send(&left, &serde_json::json!({"op": "a"}), &[file.as_fd()]).unwrap();
        send(&left, &serde_json::json!({"op": "b"}), &[]).unwrap();
        drop(left);
        let (first, fds) = recv::<serde_json::Value>(&right).unwrap().unwrap();
        assert_eq!(first["op"], "a");
        assert_eq!(File::from(fds.into_iter().next().unwrap()).metadata().unwrap().len(), 1);
        let (second, fds) = recv::<serde_json::Value>(&right).unwrap().unwrap();
        assert_eq!((second["op"].as_str(), fds.len()), (Some("b"), 0));
        assert!(recv::<serde_json::Value>(&right).unwrap().is_none());
    }

    #[test]
    fn oversized_and_truncated_frames_are_errors() {
        let (left, right) = UnixStream::pair().unwrap();
        (&left).write_all(&u32::MAX.to_le_bytes()).unwrap();
        assert!(recv::<serde_json::Value>(&right).is_err());
        let (left, right) = UnixStream::pair().unwrap();
        (&left).write_all(&[9, 0, 0, 0, b'{']).unwrap();
        drop(left);
        assert!(recv::<serde_json::Value>(&right).is_err());
    }

    #[test]
    fn socket_path_longer_than_an_address_works() {
        let base = tempfile::tempdir().unwrap();
        let deep = base.path().join("d".repeat(200));
        std::fs::create_dir(&deep).unwrap();
        let path = deep.join("holder.sock");
        let _first = listen(&path).unwrap();
        let _again = listen(&path).unwrap();
        connect(&path).unwrap();
    }
}
