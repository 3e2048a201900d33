//! Stop events of a Windows console: Ctrl-C, Ctrl-Break, closing the window, and a shutdown.

use std::io;

use tokio::signal::windows::{ctrl_break, ctrl_c, ctrl_close, ctrl_shutdown};

use super::Supervisor;
use crate::host::BoxFuture;

pub(super) struct Console;

impl Supervisor for Console {
    fn stop_requested(&self) -> io::Result<BoxFuture<'static, ()>> {
        let (mut interrupt, mut break_off) = (ctrl_c()?, ctrl_break()?);
        let (mut close, mut shutdown) = (ctrl_close()?, ctrl_shutdown()?);
        Ok(Box::pin(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = break_off.recv() => {}
                _ = close.recv() => {}
                _ = shutdown.recv() => {}
            }
        }))
    }
}
