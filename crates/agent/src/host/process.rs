//! Running one program: own process group, chunked output, an end that a stray grandchild cannot delay.

use std::{io, path::PathBuf, process::Stdio, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::Command,
    time,
};

use super::{Exec, Exit, Sink, Source, sys};

/// How long output is still collected after the program itself ended. What it printed is in the pipe by then; only a
/// process that it left behind can still hold the pipe open. Nobody waits for that, but it must be able to print.
const DRAIN: Duration = Duration::from_millis(250);
/// Between the polite and the final signal.
const GRACE: Duration = Duration::from_secs(2);

/// Runs it in a real directory, with its record in a real file.
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
    // Dropped after the group, which is then dead or no longer ours.
    #[cfg(unix)]
    let _record = record.and_then(|path| {
        let begun = super::left::Record::begin(&path, &mut command);
        begun
            .inspect_err(|error| {
                tracing::warn!(
                    "cannot write {}, so nobody ends this program if the agent is killed: {error}",
                    path.display()
                );
            })
            .ok()
    });
    #[cfg(windows)]
    drop(record);
    let mut child = command.spawn()?;
    let mut group = sys::Group::of(&child);
    let (Some(mut stdout), Some(mut stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(io::Error::other("pipes of the program are missing"));
    };

    let mut out = vec![0; 16 * 1024];
    let mut err = vec![0; 16 * 1024];
    let (mut out_open, mut err_open) = (true, true);
    let mut exit = None;
    let mut timed_out = false;
    // Far away when there is no limit; tokio clamps it.
    let deadline = time::sleep(exec.timeout.unwrap_or(Duration::from_secs(u64::from(u32::MAX))));
    tokio::pin!(deadline);
    while exit.is_none() || out_open || err_open {
        tokio::select! {
            read = stdout.read(&mut out), if out_open => match read {
                Ok(n) if n > 0 => sink.write(Source::Stdout, &out[..n]),
                _ => out_open = false,
            },
            read = stderr.read(&mut err), if err_open => match read {
                Ok(n) if n > 0 => sink.write(Source::Stderr, &err[..n]),
                _ => err_open = false,
            },
            status = child.wait(), if exit.is_none() => {
                exit = Some(status?);
                // The group may live on (a daemon the instruction started): it is no longer ours to kill.
                if !timed_out {
                    group.release();
                }
                deadline.as_mut().reset(time::Instant::now() + DRAIN);
            }
            () = &mut deadline => {
                if exit.is_some() {
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
        tokio::spawn(swallow(stdout));
    }
    if err_open {
        tokio::spawn(swallow(stderr));
    }
    if timed_out {
        return Ok(Exit::TimedOut);
    }
    Ok(Exit::Code(exit.map_or(-1, sys::exit_code)))
}

/// Reads what nobody asks for any more: a closed pipe would end whoever prints into it.
async fn swallow(mut pipe: impl AsyncRead + Unpin) {
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
        let exec = Exec {
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

    fn alive(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    }

    #[tokio::test]
    async fn exit_codes_and_signals_are_told_as_a_shell_does() {
        assert_eq!(shell("exit 7", None).await.0.unwrap(), Exit::Code(7));
        assert_eq!(shell("kill -9 $$", None).await.0.unwrap(), Exit::Code(137));
        let missing = Exec { program: "/no/such/program".into(), ..Exec::default() };
        assert!(run(&missing, "/".into(), None, &mut Collect::default()).await.is_err());
    }

    #[tokio::test]
    async fn when_the_time_is_up_the_whole_group_ends_even_if_it_ignores_the_polite_signal() {
        let script = "trap '' TERM; (trap '' TERM; sleep 600) & echo $!; wait; sleep 600";
        let (exit, output) = shell(script, Some(Duration::from_millis(300))).await;
        assert_eq!(exit.unwrap(), Exit::TimedOut);
        let deadline = time::Instant::now() + Duration::from_secs(10);
        while alive(&output) {
            assert!(time::Instant::now() < deadline, "process {output} lives on");
            time::sleep(Duration::from_millis(10)).await;
        }
    }
}
