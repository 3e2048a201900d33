//! Deterministic mutations: equal seeds give equal mutations.

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.bits() % limit.max(1) as u64) as usize
    }
}

const LIMIT: usize = 64 * 1024;

/// Applies one to eight changes; `other` is another seed to copy parts from.
pub fn mutate(random: &mut Random, from: &[u8], other: &[u8]) -> Vec<u8> {
    let mut out = from.to_vec();
    for _ in 0..=random.below(8) {
        let at = random.below(out.len() + 1);
        match random.below(7) {
            0 if at < out.len() => out[at] ^= 1 << random.below(8),
            1 if at < out.len() => out[at] = random.bits() as u8,
            2 => out.insert(at, random.bits() as u8),
            3 => {
                let end = (at + random.below(16)).min(out.len());
                out.drain(at..end);
            }
            4 => {
                let end = (at + random.below(64)).min(out.len());
                let piece = out[at..end].to_vec();
                let to = random.below(out.len() + 1);
                out.splice(to..to, piece);
            }
            5 if !other.is_empty() => {
                let start = random.below(other.len());
                let end = (start + random.below(128)).min(other.len());
                out.splice(at..at, other[start..end].iter().copied());
            }
            _ => {
                let words: [&[u8]; 8] =
                    [b"../", b"0", b"-1", b"18446744073709551616", b"\"", b"null", b"$(id)", b"\xff\xfe"];
                out.splice(at..at, words[random.below(words.len())].iter().copied());
            }
        }
        out.truncate(LIMIT);
    }
    out
}

/// Corrects the checksums in the headers of a tar file, so that a mutation passes the first check.
pub fn fix_tar(bytes: &mut [u8]) {
    let mut at = 0;
    while at + 512 <= bytes.len() {
        let block = &mut bytes[at..at + 512];
        if block.iter().all(|byte| *byte == 0) {
            return;
        }
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let size = std::str::from_utf8(&block[124..135]).ok();
        let size = size.and_then(|size| usize::from_str_radix(size.trim_matches(['\0', ' ']), 8).ok());
        at = at.saturating_add(512).saturating_add(size.unwrap_or(0).div_ceil(512).saturating_mul(512));
    }
}
