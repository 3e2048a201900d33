//! Every target with its seeds and some thousand mutations, which are the same in every run.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use drover_fuzz_targets as targets;
use targets::mutate::{Random, fix_tar, mutate};
use targets::seeds;

/// Runs the target; `finish` may repair a mutation, and gets half of them.
fn run(name: &str, target: fn(&[u8]), rounds: usize, finish: fn(&mut Random, Vec<u8>) -> Vec<u8>) {
    let seeds = seeds::of(name);
    assert!(!seeds.is_empty(), "fuzz/corpus/{name} is empty");
    let mut random = Random(name.len() as u64);
    let mut inputs = seeds.clone();
    for _ in 0..rounds {
        let (one, other) = (random.below(seeds.len()), random.below(seeds.len()));
        let mutated = mutate(&mut random, &seeds[one], &seeds[other]);
        inputs.push(if random.below(2) == 0 { mutated } else { finish(&mut random, mutated) });
    }
    for input in inputs {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(&input))) {
            eprintln!(
                "{name} fails with this input; keep it as a seed: {:?}",
                String::from_utf8_lossy(&input)
            );
            std::panic::resume_unwind(panic);
        }
    }
}

fn same(_: &mut Random, bytes: Vec<u8>) -> Vec<u8> {
    bytes
}

#[test]
fn plans() {
    run("plan_json", targets::plan_json, 5000, same);
}

#[test]
fn compressed_maps() {
    run("gzip_map", targets::gzip_map, 3000, |random, _| {
        let map = seeds::MAPS[random.below(seeds::MAPS.len())].as_bytes();
        let other = seeds::MAPS[random.below(seeds::MAPS.len())].as_bytes();
        seeds::gzip(&mutate(random, map, other))
    });
}

#[test]
fn registries_files() {
    run("registries", targets::registries, 5000, same);
}

#[test]
fn answers_of_registries() {
    run("registry_answers", targets::registry_answers, 5000, same);
}

#[test]
fn layers() {
    run("tar_layer", targets::tar_layer, 3000, |_, mut bytes| {
        fix_tar(&mut bytes);
        bytes
    });
}

#[test]
fn archives_of_images() {
    run("image_archive", targets::image_archive, 500, |_, mut bytes| {
        fix_tar(&mut bytes);
        bytes
    });
}

#[test]
fn files_of_the_agent() {
    run("config_files", targets::config_files, 4000, same);
}

#[test]
fn kubeconfigs() {
    run("kubeconfig", targets::kubeconfig, 4000, same);
}

#[test]
fn lines_of_a_watch() {
    run("watch_lines", targets::watch_lines, 3000, same);
}

#[test]
fn arguments_of_the_install_script() {
    run("install_args", targets::install_args, 2000, |random, _| {
        // Recombined lines reach more code than lines with wrong characters.
        let seeds = seeds::of("install_args");
        let lines: Vec<&[u8]> = seeds.iter().flat_map(|seed| seed.split(|byte| *byte == b'\n')).collect();
        let picked: Vec<&[u8]> = (0..random.below(9)).map(|_| lines[random.below(lines.len())]).collect();
        picked.join(&b'\n')
    });
}

#[test]
fn frames_of_a_tunnel() {
    run("tunnel_frame", targets::tunnel_frame, 5000, same);
}

#[test]
fn sessions_of_a_tunnel() {
    run("tunnel_session", targets::tunnel_session, 2000, same);
}

#[test]
fn upgrades_to_a_tunnel() {
    run("tunnel_upgrade", targets::tunnel_upgrade, 3000, same);
}

#[test]
fn headers_of_a_registration() {
    run("registration_headers", targets::registration_headers, 5000, |random, _| {
        // Lines from different seeds pass more checks than lines with wrong characters.
        let seeds = seeds::of("registration_headers");
        let lines: Vec<&[u8]> = seeds.iter().flat_map(|seed| seed.split(|byte| *byte == b'\n')).collect();
        let picked: Vec<&[u8]> = (0..random.below(9)).map(|_| lines[random.below(lines.len())]).collect();
        picked.join(&b'\n')
    });
}
