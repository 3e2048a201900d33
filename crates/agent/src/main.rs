//! `drover-agent`; see [`drover_agent`].

fn main() -> std::process::ExitCode {
    give_large_blocks_back();
    drover_agent::cli::main(&std::env::args().skip(1).collect::<Vec<_>>())
}

/// Makes glibc allocate each large block as a separate mapping, which is returned to the kernel when it is freed.
///
/// By default glibc raises its threshold when the first large block is freed, and an agent that once parsed a plan of
/// one megabyte would keep several megabytes forever: 12 MiB instead of 5.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
fn give_large_blocks_back() {
    use nix::libc::{M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, mallopt};
    // SAFETY: no other thread exists yet, and both parameters accept any number of bytes.
    unsafe {
        mallopt(M_MMAP_THRESHOLD, 32 * 1024);
        mallopt(M_TRIM_THRESHOLD, 64 * 1024);
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn give_large_blocks_back() {}
