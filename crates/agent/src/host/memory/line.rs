//! A connection of a simulated machine: it fails while the power is off.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::host::BoxIo;

pub(super) fn power_lost() -> io::Error {
    io::Error::other("power lost")
}

pub(super) fn is_off(power: &AtomicU64) -> bool {
    power.load(Ordering::SeqCst) == 0
}

/// See the module.
pub(super) struct Line {
    pub(super) io: BoxIo,
    pub(super) power: Arc<AtomicU64>,
}

impl Line {
    fn io(&mut self) -> io::Result<Pin<&mut BoxIo>> {
        if is_off(&self.power) { Err(power_lost()) } else { Ok(Pin::new(&mut self.io)) }
    }
}

impl AsyncRead for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.io()?.poll_read(context, buffer)
    }
}

impl AsyncWrite for Line {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.io()?.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io()?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io()?.poll_shutdown(context)
    }
}
