//! Where a thread's stack and static thread-local storage lie.

use crate::message::Text;
use crate::real;
use crate::sys;
use crate::thread::Thread;

/// `RLIMIT_STACK`.
const RESOURCE_STACK: usize = 3;
/// Assumed size of the main stack where `RLIMIT_STACK` is unlimited.
const UNLIMITED_STACK_BYTES: u64 = 64 << 20;
/// Upper bound of the C library's control block, which begins at the thread pointer.
const CONTROL_BLOCK_BYTES: usize = 4096;

/// First address and end of the mapping in a line of `/proc/PID/maps`, if the line ends in `name`.
fn named_line(line: &[u8], name: &[u8]) -> Option<[usize; 2]> {
    let line = line.strip_suffix(name)?;
    let mut bounds = [0usize; 2];
    let mut which = 0;
    for byte in line {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'-' if which == 0 => {
                which = 1;
                continue;
            }
            b' ' => break,
            _ => return None,
        };
        let bound = bounds.get_mut(which)?;
        *bound = bound.checked_mul(16)?.checked_add(digit.into())?;
    }
    (bounds[0] < bounds[1]).then_some(bounds)
}

/// The part of the main thread's stack that is mapped now: first byte, and the byte after the last.
pub fn main_stack_mapping() -> Option<(usize, usize)> {
    named_mapping(b"[stack]")
}

/// First byte of the heap that `brk` extends, even while the heap is empty; 0: unknown.
pub fn heap_start() -> usize {
    named_mapping(b"[heap]").map_or_else(sys::program_break, |(start, _)| start)
}

/// The first mapping of the process that the kernel lists under `name`.
fn named_mapping(name: &[u8]) -> Option<(usize, usize)> {
    let fd = sys::open(b"/proc/thread-self/maps\0", sys::O_RDONLY).ok()?;
    let mut buffer = [0u8; 1024];
    let mut line = Text::<256>::new();
    let mut found = None;
    while let Ok(bytes @ 1..) = sys::read(fd, &mut buffer) {
        for byte in buffer.iter().take(bytes) {
            if *byte == b'\n' {
                found = found.or_else(|| named_line(line.as_bytes(), name));
                line = Text::new();
            } else {
                line.push(&[*byte]);
            }
        }
        if found.is_some() {
            break;
        }
    }
    sys::close(fd);
    found.map(|[low, high]| (low, high))
}

/// The main thread's stack: its top from `/proc/self/maps`, its depth from the resource limit.
pub fn main_stack() -> [usize; 2] {
    let Some((low, high)) = main_stack_mapping() else {
        return [0; 2];
    };
    let limit = match sys::resource_limit(RESOURCE_STACK) {
        Ok(u64::MAX) | Err(_) => UNLIMITED_STACK_BYTES,
        Ok(limit) => limit,
    };
    [low.min(high.saturating_sub(limit as usize)), high]
}

/// The static thread-local storage of the calling thread, the control block included.
pub fn local_storage(static_bytes: usize) -> [usize; 2] {
    let pointer = Thread::pointer();
    if cfg!(target_arch = "x86_64") {
        [
            pointer.saturating_sub(static_bytes),
            (pointer + 1).next_multiple_of(CONTROL_BLOCK_BYTES),
        ]
    } else {
        [
            pointer.saturating_sub(CONTROL_BLOCK_BYTES),
            pointer + 16 + static_bytes,
        ]
    }
}

/// A thread's stack by the attributes that its creator passed: lowest address and size in bytes. The address is 0 where
/// the C library is to allocate the stack.
///
/// # Safety
/// `attributes` is null or points to initialised thread attributes.
pub unsafe fn stack_of_attributes(attributes: *const core::ffi::c_void) -> [usize; 2] {
    let (mut low, mut bytes) = (0usize, 0usize);
    // SAFETY: the caller's promise; the local attributes are large enough for every C library
    // (56 bytes on x86-64, 64 on AArch64) and are initialised before use.
    unsafe {
        if attributes.is_null() {
            let mut own = [0u64; 32];
            let own = own.as_mut_ptr().cast();
            if real::pthread_attr_init(own) == 0 {
                real::pthread_attr_getstacksize(own, &mut bytes);
                real::pthread_attr_destroy(own);
            }
        } else {
            real::pthread_attr_getstacksize(attributes, &mut bytes);
            let mut given = 0usize;
            real::pthread_attr_getstack(attributes, &mut low, &mut given);
            // If the program set no stack memory, glibc answers with a stack that ends at address 0.
            if low.wrapping_add(given) == 0 || low == 0 {
                low = 0;
            }
        }
    }
    [low, bytes]
}

/// The calling thread's stack, from the result of [`stack_of_attributes`] in its creator. The C library
/// puts static thread-local storage at the top of the stacks that it allocates.
pub fn thread_stack(attributes: [usize; 2], local_storage: [usize; 2]) -> [usize; 2] {
    let [low, bytes] = attributes;
    if bytes == 0 {
        return [0; 2];
    }
    if low != 0 {
        return [low, low + bytes];
    }
    [local_storage[1].saturating_sub(bytes), local_storage[0]]
}

/// The whole pages of the memory that holds the calling thread's stack and thread-local storage. `attributes` and
/// `local_storage` are those of [`thread_stack`]; `None` where the stack is unknown.
pub fn stack_pages(
    attributes: [usize; 2],
    local_storage: [usize; 2],
    page_bytes: usize,
) -> Option<(usize, usize)> {
    let [given, bytes] = attributes;
    let page = page_bytes.checked_next_power_of_two()?;
    let (low, end) = match given {
        // The control block is in the last page of what the C library mapped.
        0 => {
            let end = local_storage[1].checked_next_multiple_of(page)?;
            (end.checked_sub(bytes)?, end)
        }
        low => (low, low.checked_add(bytes)? & !(page - 1)),
    };
    let start = low.checked_next_multiple_of(page)?;
    (bytes > 0 && start < end).then_some((start, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps_are_read() {
        assert_eq!(
            named_line(
                b"7ffd1000-7ffd3000 rw-p 00000000 00:00 0                          [stack]",
                b"[stack]"
            ),
            Some([0x7ffd_1000, 0x7ffd_3000])
        );
        assert_eq!(
            named_line(
                b"7ffd1000-7ffd3000 rw-p 00000000 00:00 0  [heap]",
                b"[stack]"
            ),
            None
        );
        assert_eq!(named_line(b"[stack]", b"[stack]"), None);
        assert_eq!(named_line(b"fffffffffffffffff-1 [stack]", b"[stack]"), None);
    }

    #[test]
    fn whole_pages_of_a_stack() {
        let storage = [0x7f10_0000_e800, 0x7f10_0001_0000];
        let pages = |attributes| stack_pages(attributes, storage, 4096);
        assert_eq!(
            pages([0, 0x8000]),
            Some((0x7f10_0000_8000, 0x7f10_0001_0000))
        );
        assert_eq!(
            pages([0, 0x8001]),
            Some((0x7f10_0000_8000, 0x7f10_0001_0000)),
            "no more than there is"
        );
        // Memory that the program passed: pages that it shares with other data are left out.
        assert_eq!(pages([0x20010, 0x8000]), Some((0x21000, 0x28000)));
        assert_eq!(pages([0x20000, 0x8000]), Some((0x20000, 0x28000)));
        assert_eq!(pages([0x20010, 0xff0]), None);
        assert_eq!(pages([0, 0]), None);
        assert_eq!(pages([usize::MAX - 10, 100]), None);
        assert_eq!(
            stack_pages([0, 0x20000], [0x10_f000, 0x10_e000], 1 << 16),
            Some((0xf_0000, 0x11_0000)),
            "larger pages"
        );
    }

    #[test]
    fn this_processes_main_stack_is_found() {
        let [low, high] = main_stack();
        assert!(low < high && high - low >= 1 << 16);
        let (start, end) = main_stack_mapping().unwrap();
        assert!(low <= start && start < end && end == high);
    }
}
