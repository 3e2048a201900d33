//! `drover-agent`; see [`drover_agent`].

fn main() -> std::process::ExitCode {
    give_large_blocks_back();
    drover_agent::cli::main(&std::env::args().skip(1).collect::<Vec<_>>())
}

/// Lets every large allocation be a mapping of its own, which goes back to the kernel when it is freed.
///
/// By default glibc raises its threshold with the first large block that is freed, and an agent that once saw a plan of
/// a megabyte would keep several for ever: 12 MiB instead of 5.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
fn give_large_blocks_back() {
    use nix::libc::{M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, mallopt};
    // SAFETY: no other thread exists yet, and both parameters take any number of bytes.
    unsafe {
        mallopt(M_MMAP_THRESHOLD, 32 * 1024);
        mallopt(M_TRIM_THRESHOLD, 64 * 1024);
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn give_large_blocks_back() {}
