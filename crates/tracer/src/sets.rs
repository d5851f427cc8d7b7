//! The entries of a set-associative structure, set by set.

/// Entries in sets of one size. The number of sets is a power of two.
pub struct Sets<T> {
    entries: Box<[T]>,
    mask: u64,
    ways: usize,
}

impl<T: Default> Sets<T> {
    /// Makes `sets` sets, rounded up to a power of two.
    pub fn new(sets: u64, ways: usize) -> Self {
        let sets = sets.next_power_of_two();
        Self {
            entries: (0..sets as usize * ways).map(|_| T::default()).collect(),
            mask: sets - 1,
            ways,
        }
    }

    /// Entries of the set `number`, modulo the number of sets.
    #[inline]
    pub fn of(&self, number: u64) -> &[T] {
        let first = (number & self.mask) as usize * self.ways;
        // SAFETY: `new` made `ways` entries for each number up to `mask`, and nothing changes these.
        unsafe { self.entries.get_unchecked(first..first + self.ways) }
    }

    /// The entries of a set, if they are exactly `N`: the compiler then knows their number.
    #[inline]
    pub fn exactly<const N: usize>(&self, number: u64) -> Option<&[T; N]> {
        if self.ways != N {
            return None;
        }
        let first = (number & self.mask) as usize * N;
        // SAFETY: as above.
        Some(unsafe { &*self.entries.as_ptr().add(first).cast() })
    }

    /// Where the host has the sets, for prefetching.
    pub fn place(&self) -> Place {
        Place::new(&self.entries, self.mask, self.ways)
    }

    /// Entries of a set.
    #[inline]
    pub fn ways(&self) -> usize {
        self.ways
    }

    /// All entries.
    pub fn all(&self) -> &[T] {
        &self.entries
    }
}

/// Where the host has the sets of a structure, so that they can be prefetched.
#[derive(Clone, Copy)]
pub struct Place {
    first: u64,
    set_mask: u64,
    set_bytes: u64,
}

impl Place {
    /// The place of sets with `ways` entries each.
    pub fn new<T>(entries: &[T], set_mask: u64, ways: usize) -> Self {
        Self {
            first: entries.as_ptr().addr() as u64,
            set_mask,
            set_bytes: (ways * size_of::<T>()) as u64,
        }
    }

    /// The same place, or if not `wanted` a place with the first set alone: to prefetch that one again and again costs next
    /// to nothing, and needs no branch.
    pub fn if_wanted(self, wanted: bool) -> Self {
        Self {
            set_mask: if wanted { self.set_mask } else { 0 },
            ..self
        }
    }

    /// Prefetches the beginning of the set `number`, modulo the number of sets, for writing.
    #[inline]
    pub fn expect(&self, number: u64) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::asm;
            let set = self.first + (number & self.set_mask) * self.set_bytes;
            // The intrinsic prefetches for reading, unless the compiler is told that the processor has this instruction.
            // Processors without it treat it as a no-op.
            // SAFETY: a prefetch reads and writes nothing that a program can see.
            unsafe { asm!("prefetchw [{}]", in(reg) set, options(nostack, preserves_flags)) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = number;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_follow_each_other_and_numbers_wrap_around() {
        let sets = Sets::<u32>::new(3, 5);
        let at = |number: u64| sets.of(number).as_ptr() as usize;
        assert_eq!((sets.all().len(), sets.of(u64::MAX).len()), (20, 5));
        assert_eq!((at(3) - at(0), at(7)), (3 * 5 * 4, at(3)));
        assert_eq!(
            sets.exactly::<5>(6).map(|set| set.as_ptr() as usize),
            Some(at(2))
        );
        assert_eq!(sets.exactly::<4>(0), None);
    }
}
