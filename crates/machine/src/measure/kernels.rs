//! The inner loops. They are ordinary Rust that the compiler may vectorise as far as the target's
//! baseline goes (SSE2 on x86-64): no streaming stores, no AVX, no software prefetch, so that they
//! see what an ordinary program sees.

use std::hint::black_box;

/// Words of a buffer that a link of a chain, or a cache line of 64 bytes, has.
pub const WORD_BYTES: usize = size_of::<u64>();

/// Makes one cycle through all lines of `line_words` words in random order (Sattolo's algorithm):
/// the first word of each line holds the position of the next line's first word. Hardware
/// prefetchers find no stride in it. Fewer than two lines: a line that leads to itself.
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

/// Follows a chain for `steps` loads, each of which waits for the one before it. Returns where it
/// is then.
pub fn chase(chain: &[u64], start: u64, steps: u64) -> u64 {
    let mut at = start;
    for _ in 0..steps {
        at = chain[at as usize];
    }
    black_box(at)
}

/// As [`chase`], with so many multiplications between two loads, which wait for one another.
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

/// Stores to every word once, in order. Ordinary stores: the CPU reads each line before it changes
/// it, and that traffic is not in the program's count.
pub fn write(words: &mut [u64], value: u64) {
    let value = black_box(value);
    for word in words.iter_mut() {
        *word = value;
    }
    black_box(words);
}

/// Loads a word from each of two streams and stores one to the third. All have the same length.
pub fn mix(target: &mut [u64], a: &[u64], b: &[u64]) {
    for ((target, a), b) in target.iter_mut().zip(a).zip(b) {
        *target = a ^ b;
    }
    black_box(target);
}

/// splitmix64 (Steele, Lea, Flood 2014): any seed will do.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to `end` - 1.
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
        // 8 of 4095 lines are within four lines of any one.
        assert!(near < 40, "{near} of 4096 steps go to a near line");
    }
}
