//! Inner loops of the measurements. They are ordinary Rust that the compiler may vectorise up to the target's baseline
//! (SSE2 on x86-64). Without streaming stores, AVX and software prefetch, they measure what an ordinary program gets.

use std::hint::black_box;

/// Bytes of a word, in which buffers are indexed.
pub const WORD_BYTES: usize = size_of::<u64>();

/// Links all lines of `line_words` words into one cycle in random order (Sattolo's algorithm): the first word of each
/// line holds the position of the next line's first word. Hardware prefetchers find no stride in the cycle. A buffer of
/// fewer than two lines gets a line that leads to itself.
pub fn build_chain(words: &mut [u64], line_words: usize, seed: u64) {
    let lines = words.len() / line_words;
    for line in 0..lines {
        words[line * line_words] = (line * line_words) as u64;
    }
    let mut random = Random(seed);
    for line in (1..lines).rev() {
        let other = random.below(line as u64) as usize;
        words.swap(line * line_words, other * line_words);
    }
}

/// Follows a chain for `steps` loads, each of which waits for the one before. Returns the position of the last line.
pub fn chase(chain: &[u64], start: u64, steps: u64) -> u64 {
    let mut at = start;
    for _ in 0..steps {
        at = chain[at as usize];
    }
    black_box(at)
}

/// As [`chase`], with `computing` dependent multiplications between two loads.
pub fn chase_computing(chain: &[u64], start: u64, steps: u64, computing: u32) -> u64 {
    let nothing = black_box(0);
    let mut at = start;
    for _ in 0..steps {
        let next = chain[at as usize];
        let mut value = next;
        for _ in 0..computing {
            value = value
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
        }
        at = next ^ (value & nothing);
    }
    black_box(at)
}

/// Loads every word once, in order.
pub fn read(words: &[u64]) {
    let mut lanes = [0; 8];
    let chunks = words.chunks_exact(lanes.len());
    for &word in chunks.remainder() {
        lanes[0] ^= word;
    }
    for chunk in chunks {
        for (lane, word) in lanes.iter_mut().zip(chunk) {
            *lane ^= word;
        }
    }
    black_box(lanes);
}

/// Stores to every word once, in order. The stores are ordinary: the CPU reads each line before it changes it, and the
/// program does not count that traffic.
pub fn write(words: &mut [u64], value: u64) {
    let value = black_box(value);
    for word in words.iter_mut() {
        *word = value;
    }
    black_box(words);
}

/// Loads a word from each of two streams and stores a word to the third. All three have the same length.
pub fn mix(target: &mut [u64], a: &[u64], b: &[u64]) {
    for ((target, a), b) in target.iter_mut().zip(a).zip(b) {
        *target = a ^ b;
    }
    black_box(target);
}

/// splitmix64 (Steele, Lea, Flood 2014), which accepts any seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to `end` - 1.
    fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_chain_visits_every_line_once_and_comes_back(
            lines in 1usize..300,
            line_words in 1usize..20,
            rest in 0usize..20,
            seed in any::<u64>(),
        ) {
            let mut words = vec![0; lines * line_words + rest % line_words];
            build_chain(&mut words, line_words, seed);
            let mut seen = vec![false; lines];
            let mut at = 0;
            for _ in 0..lines {
                prop_assert_eq!(at as usize % line_words, 0);
                let line = at as usize / line_words;
                prop_assert!(!seen[line]);
                seen[line] = true;
                at = chase(&words, at, 1);
            }
            prop_assert_eq!(at, 0);
            prop_assert_eq!(chase(&words, 0, lines as u64), 0);
            prop_assert_eq!(chase_computing(&words, 0, lines as u64, 3), 0);
        }

        #[test]
        fn stores_reach_every_word(length in 0usize..100, value in any::<u64>()) {
            let mut words = vec![!value; length];
            write(&mut words, value);
            prop_assert_eq!(&words, &vec![value; length]);
            read(&words);
            let mut target = vec![1; length];
            mix(&mut target, &words, &vec![u64::MAX; length]);
            prop_assert_eq!(target, vec![!value; length]);
        }
    }

    #[test]
    fn chains_are_in_no_order() {
        let mut words = vec![0; 8 << 12];
        build_chain(&mut words, 8, 7);
        let mut near = 0;
        let mut at = 0;
        for _ in 0..1 << 12 {
            let next = chase(&words, at, 1);
            near += u32::from(next.abs_diff(at) <= 8 * 4);
            at = next;
        }
        // Any line has 8 of the 4095 others within four lines.
        assert!(near < 40, "{near} of 4096 steps go to a near line");
    }
}
