//! `mremap` of memory whose pages have several policies.
//!
//! Linux's `mremap` accepts one mapping only, but the placement of an object in pieces splits the program's mapping. A call
//! that works without a plan must work with one, so the pieces are moved one by one, with their pages and policies.

use crate::sys::{self, Errno};

const MREMAP_MAYMOVE: usize = 1;
const MREMAP_FIXED: usize = 2;
const MAP_FIXED: usize = 0x10;

/// Most mappings that one object may consist of.
const MAPPINGS_MAX: usize = 1 << 16;

/// Start and end of a mapping.
pub(super) type Range = (usize, usize);

/// A mapping of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) start: usize,
    pub(super) end: usize,
    /// It is private, writable and anonymous.
    pub(super) is_private_memory: bool,
}

/// Reads the mappings of `/proc/self/maps`, in pieces of any size.
#[derive(Default)]
struct MapsParser {
    column: Column,
    start: usize,
    end: usize,
    permissions: [u8; 4],
    /// Columns of the current line that are read.
    columns: usize,
    has_file: bool,
}

#[derive(Default)]
enum Column {
    #[default]
    Start,
    End,
    /// Permissions, offset, device and inode.
    Words,
    Rest,
}

/// Columns before the name: addresses, permissions, offset, device, inode.
const COLUMNS: usize = 5;

impl MapsParser {
    fn feed(&mut self, text: &[u8], mut found: impl FnMut(Mapping)) {
        for byte in text {
            let digit = (*byte as char).to_digit(16).unwrap_or(0) as usize;
            match (&self.column, byte) {
                (Column::Words, b' ' | b'\n') => {
                    self.columns += 1;
                    if self.columns == COLUMNS {
                        found(self.mapping());
                        self.column = Column::Rest;
                    }
                    if *byte == b'\n' {
                        *self = Self::default();
                    }
                }
                (_, b'\n') => *self = Self::default(),
                (Column::Start, b'-') => self.column = Column::End,
                (Column::Start, _) => self.start = self.start << 4 | digit,
                (Column::End, b' ') => (self.column, self.columns) = (Column::Words, 1),
                (Column::End, _) => self.end = self.end << 4 | digit,
                (Column::Words, _) if self.columns == 1 => {
                    self.permissions.rotate_left(1);
                    self.permissions[3] = *byte;
                }
                (Column::Words, _) => self.has_file |= self.columns == 4 && *byte != b'0',
                (Column::Rest, _) => {}
            }
        }
    }

    fn mapping(&self) -> Mapping {
        let [_, writable, _, private] = self.permissions;
        Mapping {
            start: self.start,
            end: self.end,
            is_private_memory: writable == b'w' && private == b'p' && !self.has_file,
        }
    }
}

/// Calls `found` for every mapping of the process, in ascending order.
pub(super) fn each_mapping(mut found: impl FnMut(Mapping)) -> Result<(), Errno> {
    // `/proc/self` means the main thread, whose file is empty once that thread has ended.
    let file = sys::open(b"/proc/thread-self/maps\0", sys::O_RDONLY)?;
    let mut parser = MapsParser::default();
    let mut buffer = [0; 2048];
    let result = loop {
        match sys::read(file, &mut buffer) {
            Ok(0) => break Ok(()),
            Ok(read) => parser.feed(buffer.get(..read).unwrap_or_default(), &mut found),
            Err(sys::EINTR) => {}
            Err(error) => break Err(error),
        }
    };
    sys::close(file);
    result
}

/// Memory for the list of an object's mappings.
struct List {
    address: usize,
    length: usize,
}

impl List {
    fn new() -> Result<Self, Errno> {
        Ok(Self {
            address: sys::reserve(MAPPINGS_MAX * size_of::<Range>())?,
            length: 0,
        })
    }

    fn push(&mut self, range: Range) {
        if self.length < MAPPINGS_MAX {
            // SAFETY: below the length that was mapped.
            unsafe { (self.address as *mut Range).add(self.length).write(range) };
            self.length += 1;
        }
    }

    fn ranges(&self) -> &[Range] {
        // SAFETY: so many were written.
        unsafe { core::slice::from_raw_parts(self.address as *const Range, self.length) }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, used by nobody else.
        let _ = unsafe { sys::munmap(self.address, MAPPINGS_MAX * size_of::<Range>()) };
    }
}

/// Does what `mremap` with these arguments would have done if the memory were one mapping. `None` if it failed for another
/// reason, or this fails as well; then nothing has changed.
///
/// # Safety
/// The contract of `mremap` itself, which must have failed.
pub unsafe fn remap(
    old: usize,
    old_length: usize,
    new_length: usize,
    flags: usize,
    new: usize,
) -> Option<usize> {
    let page = super::page_bytes()?;
    if flags & !(MREMAP_MAYMOVE | MREMAP_FIXED) != 0 || old_length == 0 || old & (page - 1) != 0 {
        return None;
    }
    let old_end = old.checked_add(old_length.checked_next_multiple_of(page)?)?;
    let new_length = new_length
        .checked_next_multiple_of(page)
        .filter(|length| *length > 0)?;
    let mut list = List::new().ok()?;
    let mut next = old;
    each_mapping(|Mapping { start, end, .. }| {
        if start <= next && next < end.min(old_end) {
            list.push((next, end.min(old_end)));
            next = end.min(old_end);
        }
    })
    .ok()?;
    let [.., (last, last_end)] = *list.ranges() else {
        return None;
    };
    // The range is one mapping, or has gaps: `mremap` failed for another reason.
    if list.length < 2 || last_end != old_end {
        return None;
    }
    let grown = new_length.saturating_sub(old_end - old);
    let remap = |from: Range, length: usize, flags: usize, to: usize| {
        // SAFETY: the mappings that the caller passed are moved one at a time, into memory reserved for them.
        unsafe {
            sys::call(
                sys::number::MREMAP,
                [from.0, from.1 - from.0, length, flags, to, 0],
            )
        }
    };
    if flags & MREMAP_FIXED == 0 && remap((last, old_end), old_end - last + grown, 0, 0).is_ok() {
        return Some(old);
    }
    if flags & MREMAP_MAYMOVE == 0 {
        return None;
    }
    let target = if flags & MREMAP_FIXED != 0 {
        if new & (page - 1) != 0 || (new < old_end && old < new.checked_add(new_length)?) {
            return None;
        }
        let place = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE | MAP_FIXED;
        // SAFETY: MREMAP_FIXED replaces what is there, as the caller asked.
        unsafe {
            sys::call(
                sys::number::MMAP,
                [new, new_length, sys::PROT_NONE, place, usize::MAX, 0],
            )
        }
        .ok()?
    } else {
        sys::mmap(
            new_length,
            sys::PROT_NONE,
            sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE,
            None,
            0,
        )
        .ok()?
    };
    let fixed = MREMAP_MAYMOVE | MREMAP_FIXED;
    let moved = |(start, end): Range| (target + (start - old), target + (end - old));
    // Mappings beyond a smaller target are dropped, as `mremap` drops them.
    let kept = list
        .ranges()
        .iter()
        .map(|(start, end)| (*start, (*end).min(old + new_length)));
    for (done, range) in kept.clone().filter(|(start, end)| start < end).enumerate() {
        let length = range.1 - range.0 + if range.1 == old_end { grown } else { 0 };
        if remap(range, length, fixed, moved(range).0).is_err() {
            for range in kept.take(done) {
                let _ = remap(moved(range), range.1 - range.0, fixed, range.0);
            }
            // SAFETY: reserved above, and everything that was moved there is back.
            let _ = unsafe { sys::munmap(target, new_length) };
            return None;
        }
    }
    if old + new_length < old_end {
        // SAFETY: the tail that the caller gave up.
        let _ = unsafe { sys::munmap(old + new_length, old_end - old - new_length) };
    }
    Some(target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[test]
    fn mappings_are_read_whatever_the_pieces() {
        let text =
            b"1000-3000 rw-p 00000000 08:01 10  /a-b c\n7f00aa000000-7f00aa001000 rw-p 0 0 0\n\
              5000-6000 rw-s 0 0 0 x\n6000-7000 ---p 0 0 0\n7000-9000 rw-p 0 0 0      [heap]\n";
        for size in 1..text.len() {
            let mut parser = MapsParser::default();
            let mut found = Vec::new();
            for piece in text.chunks(size) {
                parser.feed(piece, |range| found.push(range));
            }
            let ranges = [
                (0x1000, 0x3000, false),
                (0x7f00_aa00_0000, 0x7f00_aa00_1000, true),
                (0x5000, 0x6000, false),
                (0x6000, 0x7000, false),
                (0x7000, 0x9000, true),
            ];
            let expected = ranges.map(|(start, end, is_private_memory)| Mapping {
                start,
                end,
                is_private_memory,
            });
            assert_eq!(found, expected);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in proptest::collection::vec(any::<u8>(), 0..300)) {
            MapsParser::default().feed(&text, |_| {});
        }
    }
}
