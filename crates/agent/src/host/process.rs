//! Runs one program in its own process group, and captures its output in chunks. A background process that it leaves
//! running does not delay the end.

use std::{
    future::{Future, poll_fn},
    io,
    path::PathBuf,
    pin::pin,
    process::Stdio,
    task::Poll,
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::Command,
    time,
};

use super::{Exec, Exit, Sink, Source, sys};

/// How long output is still read after the program ended. Its own output is in the pipe by then; only a background
/// process can still hold the pipe open. It is not waited for, but it must still be able to write.
const DRAIN: Duration = Duration::from_millis(250);
/// The maximum content of a pipe, unless root raised the system's limit.
const HELD: usize = 1024 * 1024;
/// The time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);

type Pipe = Box<dyn AsyncRead + Send + Unpin>;

/// Runs the program in a real directory, with its record in a real file.
pub(super) async fn run(
    exec: &Exec,
    dir: PathBuf,
    record: Option<PathBuf>,
    sink: &mut dyn Sink,
) -> io::Result<Exit> {
    let mut command = Command::new(&exec.program);
    command
        .args(&exec.args)
        .env_clear()
        .envs(exec.env.iter().map(|(name, value)| (name, value)))
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    sys::prepare(&mut command);
    let joined = if exec.combined { sys::join_streams(&mut command)? } else { None };
    // Dropped after the group, which is then dead or released.
    #[cfg(unix)]
    let _record = record.and_then(|path| {
        let begun = super::orphans::Record::begin(&path, &mut command);
        begun
            .inspect_err(|error| {
                tracing::warn!(
                    "failed to write {}, so this program keeps running if the agent is killed: {error}",
                    path.display()
                );
            })
            .ok()
    });
    #[cfg(windows)]
    drop(record);
    let mut child = command.spawn()?;
    let mut group = sys::Group::of(&child);
    // Also closes our copies of the write ends of the pipes; otherwise they would stay open.
    drop(command);
    let (mut stdout, mut stderr, first): (Pipe, Pipe, Source) =
        match (joined, child.stdout.take(), child.stderr.take()) {
            (Some(both), ..) => (Box::new(both), Box::new(tokio::io::empty()), Source::Both),
            (None, Some(stdout), Some(stderr)) => (Box::new(stdout), Box::new(stderr), Source::Stdout),
            _ => return Err(io::Error::other("pipes of the program are missing")),
        };

    let mut out = vec![0; 16 * 1024];
    let mut err = vec![0; 16 * 1024];
    let (mut out_open, mut err_open) = (true, true);
    let mut exit = None;
    let mut timed_out = false;
    // A far deadline if there is no limit; tokio clamps it.
    let deadline = time::sleep(exec.timeout.unwrap_or(Duration::from_secs(u64::from(u32::MAX))));
    tokio::pin!(deadline);
    while exit.is_none() || out_open || err_open {
        tokio::select! {
            read = stdout.read(&mut out), if out_open => match read {
                Ok(n) if n > 0 => sink.write(first, &out[..n]),
                _ => out_open = false,
            },
            read = stderr.read(&mut err), if err_open => match read {
                Ok(n) if n > 0 => sink.write(Source::Stderr, &err[..n]),
                _ => err_open = false,
            },
            status = child.wait(), if exit.is_none() => {
                exit = Some(status?);
                // Release the group, so that a background process (a daemon that the instruction started) keeps
                // running.
                if !timed_out {
                    group.release();
                }
                deadline.as_mut().reset(time::Instant::now() + DRAIN);
            }
            () = &mut deadline => {
                if exit.is_some() {
                    // On a slow machine its last output, which contains the reason of a failure, has not been read yet.
                    out_open = out_open && drain(&mut stdout, &mut out, first, sink).await;
                    err_open = err_open && drain(&mut stderr, &mut err, Source::Stderr, sink).await;
                    break;
                }
                if timed_out {
                    group.kill();
                } else {
                    group.ask();
                }
                timed_out = true;
                deadline.as_mut().reset(time::Instant::now() + GRACE);
            }
        }
    }
    if out_open {
        tokio::spawn(discard(stdout));
    }
    if err_open {
        tokio::spawn(discard(stderr));
    }
    if timed_out {
        return Ok(Exit::TimedOut);
    }
    Ok(Exit::Code(exit.map_or(-1, sys::exit_code)))
}

/// Reads the content of a pipe without waiting. Stops if another process writes faster. False once the pipe is closed.
async fn drain(
    pipe: &mut (impl AsyncRead + Unpin),
    buffer: &mut [u8],
    source: Source,
    sink: &mut dyn Sink,
) -> bool {
    let mut left = HELD;
    while left > 0 {
        match ready_now(pipe.read(buffer)).await {
            None => return true,
            Some(Ok(n)) if n > 0 => {
                sink.write(source, &buffer[..n]);
                left = left.saturating_sub(n);
            }
            Some(_) => return false,
        }
    }
    true
}

/// The result of the future, if it is ready.
async fn ready_now<T>(future: impl Future<Output = T>) -> Option<T> {
    // A task that has read a lot is otherwise forced to yield although there is more data.
    let mut future = pin!(tokio::task::unconstrained(future));
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Discards later output, because a closed pipe would kill the process that writes to it.
async fn discard(mut pipe: impl AsyncRead + Unpin) {
    let mut chunk = [0; 1024];
    while pipe.read(&mut chunk).await.is_ok_and(|n| n > 0) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Collect(Vec<u8>);

    impl Sink for Collect {
        fn write(&mut self, _: Source, chunk: &[u8]) {
            self.0.extend_from_slice(chunk);
        }
    }

    async fn shell(script: &str, timeout: Option<Duration>) -> (io::Result<Exit>, String) {
        shell_with(script, timeout, false).await
    }

    async fn shell_with(
        script: &str,
        timeout: Option<Duration>,
        combined: bool,
    ) -> (io::Result<Exit>, String) {
        let exec = Exec {
            combined,
            program: "sh".into(),
            args: vec!["-c".into(), script.into()],
            env: vec![("PATH".into(), std::env::var("PATH").unwrap())],
            timeout,
            ..Exec::default()
        };
        let mut sink = Collect::default();
        let exit = run(&exec, "/".into(), None, &mut sink).await;
        (exit, String::from_utf8(sink.0).unwrap())
    }

    #[tokio::test]
    async fn both_streams_together_keep_their_order() {
        let script = "for i in 1 2 3 4 5 6 7 8; do echo o$i; echo e$i >&2; done; exit 3";
        let started = time::Instant::now();
        let (exit, output) = shell_with(script, None, true).await;
        assert_eq!(exit.unwrap(), Exit::Code(3));
        let printed: String = (1..=8).map(|i| format!("o{i}\ne{i}\n")).collect();
        assert_eq!(output, printed);
        assert!(started.elapsed() < Duration::from_secs(60));
        let (exit, output) = shell_with("sleep 600 & echo $!", None, true).await;
        assert_eq!(exit.unwrap(), Exit::Code(0));
        assert!(alive(&output), "the background process keeps running");
        let pid = nix::unistd::Pid::from_raw(output.trim().parse().unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    }

    fn alive(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    }

    #[tokio::test]
    async fn exit_codes_and_signals_are_reported_as_by_a_shell() {
        assert_eq!(shell("exit 7", None).await.0.unwrap(), Exit::Code(7));
        assert_eq!(shell("kill -9 $$", None).await.0.unwrap(), Exit::Code(137));
        let missing = Exec { program: "/no/such/program".into(), ..Exec::default() };
        assert!(run(&missing, "/".into(), None, &mut Collect::default()).await.is_err());
    }

    #[tokio::test]
    async fn a_timeout_kills_the_whole_group_even_if_it_ignores_sigterm() {
        let script = "trap '' TERM; (trap '' TERM; sleep 600) & echo $!; wait; sleep 600";
        let (exit, output) = shell(script, Some(Duration::from_secs(2))).await;
        assert_eq!(exit.unwrap(), Exit::TimedOut);
        assert!(output.trim().parse::<u32>().is_ok(), "it printed its process id: {output:?}");
        let deadline = time::Instant::now() + Duration::from_secs(10);
        while alive(&output) {
            assert!(time::Instant::now() < deadline, "process {output} is still running");
            time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Slow, like a log on a busy disk.
    #[derive(Default)]
    struct Slow(Vec<u8>);

    impl Sink for Slow {
        fn write(&mut self, _: Source, chunk: &[u8]) {
            std::thread::sleep(DRAIN + Duration::from_millis(10));
            self.0.extend_from_slice(chunk);
        }
    }

    #[test]
    fn the_last_line_is_read_by_a_slow_reader() {
        // Repeated, because the order of events is random.
        let runs: Vec<_> = (0..8)
            .map(|_| {
                std::thread::spawn(|| {
                    // Time passes while the reader is busy.
                    let mut runtime = tokio::runtime::Builder::new_multi_thread();
                    let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
                    let exec = Exec {
                        program: "sh".into(),
                        args: vec!["-c".into(), "head -c 60000 /dev/zero; echo the reason; exit 3".into()],
                        env: vec![("PATH".into(), std::env::var("PATH").unwrap())],
                        ..Exec::default()
                    };
                    let mut sink = Slow::default();
                    let exit = runtime.block_on(run(&exec, "/".into(), None, &mut sink)).unwrap();
                    (exit, sink.0)
                })
            })
            .collect();
        for run in runs {
            let (exit, output) = run.join().unwrap();
            assert_eq!(exit, Exit::Code(3));
            assert!(output.ends_with(b"the reason\n"), "only {} bytes were read", output.len());
        }
    }

    #[tokio::test]
    async fn a_background_process_does_not_delay_the_end_or_flood_the_output() {
        let started = time::Instant::now();
        let (exit, output) = shell("echo said; sleep 600 & echo $!", None).await;
        assert_eq!(exit.unwrap(), Exit::Code(0));
        assert!(started.elapsed() < Duration::from_secs(60), "it is not waited for");
        let pid = output.strip_prefix("said\n").unwrap().trim().parse().unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
        let mut endless = tokio::io::repeat(b'y');
        let mut sink = Collect::default();
        assert!(drain(&mut endless, &mut [0; 16 * 1024], Source::Stdout, &mut sink).await);
        assert_eq!(sink.0.len(), HELD);
    }
}
