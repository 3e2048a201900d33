//! A connection of a machine: it breaks together with the machine's power.

use std::io;
use std::pin::Pin;
use std::sync::Weak;
use std::task::{Context, Poll};

use drover_agent::host::MemoryHost;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// See the module.
pub(crate) struct Wire {
    stream: TcpStream,
    host: Weak<MemoryHost>,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream, host: Weak<MemoryHost>) -> Self {
        Self { stream, host }
    }

    fn alive(&self) -> io::Result<()> {
        match self.host.upgrade() {
            Some(host) if !host.is_dead() => Ok(()),
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.alive()?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.alive()?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
