//! A running `drover server`, a private file system, and checks of error messages.

use std::fs;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Answer, Person, eventually, when};

pub fn has_kubectl() -> bool {
    let there = Command::new("kubectl").args(["version", "--client"]).output().is_ok();
    if !there {
        eprintln!("\n*** SKIPPED: needs kubectl ***\n");
    }
    there
}

/// A running `drover server`.
pub struct Server {
    pub process: Child,
    pub person: Person,
}

impl Server {
    pub fn start(person: Person) -> Self {
        let process = spawn(&person, &mut person.command(person.binary()));
        Self { process, person }
    }

    /// Stops it with SIGTERM; returns its output.
    pub fn stop(&mut self) -> String {
        kill(Pid::from_raw(self.process.id() as i32), Signal::SIGTERM).unwrap();
        assert!(self.process.wait().unwrap().success());
        fs::read_to_string(self.person.home().join("server.out")).unwrap()
    }

    /// The address on which it listens.
    pub fn address(&self) -> String {
        let text = fs::read_to_string(self.person.home().join("server.out")).unwrap();
        text.split_once("https://").unwrap().1.split_whitespace().next().unwrap().to_owned()
    }

    /// `kubectl apply` of a document.
    pub fn apply(&self, document: &str) -> Answer {
        let file = self.person.write("document.yaml", document);
        self.person.kubectl(&["apply", "-f", &file])
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts `drover server` on a free port and waits until it answers.
pub fn spawn(person: &Person, command: &mut Command) -> Child {
    let path = person.home().join("server.out");
    let out = fs::File::create(&path).unwrap();
    command.args(["server", "--bind", "127.0.0.1:0"]).stdin(Stdio::null());
    let mut process = command.stdout(out.try_clone().unwrap()).stderr(out).spawn().unwrap();
    eventually(|| {
        let text = fs::read_to_string(&path).unwrap();
        assert!(process.try_wait().unwrap().is_none(), "drover server ended: {text}");
        when(text.contains("drover is ready"), text)
    });
    process
}

/// Checks for one sentence on stderr with these parts, and nothing on stdout.
#[track_caller]
pub fn one_sentence(answer: Answer, parts: &[&str]) {
    let (words, out) = (answer.words.clone(), answer.out.clone());
    let text = answer.refused();
    assert_eq!(out, "", "{words}");
    assert!(text.starts_with("drover: ") && text.trim_end().lines().count() == 1, "{words}: {text}");
    for part in parts {
        assert!(text.contains(part), "{words} says {text:?} and not {part:?}");
    }
}

/// A small file system that only this test can see.
pub struct PrivateMount {
    pub keeper: Child,
}

impl PrivateMount {
    pub fn new(mount: &str) -> Self {
        let script = format!("{mount} && echo made && exec sleep infinity");
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]).stdout(Stdio::piped());
        let mut keeper = command.spawn().unwrap();
        let mut made = [0; 5];
        std::io::Read::read_exact(&mut keeper.stdout.take().unwrap(), &mut made).unwrap();
        Self { keeper }
    }

    /// A program in that mount namespace.
    pub fn command(&self, person: &Person, program: &str) -> Command {
        let mut command = person.command("nsenter");
        command.args(["--mount", "--target", &self.keeper.id().to_string(), "--", program]);
        command
    }
}

impl Drop for PrivateMount {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}
