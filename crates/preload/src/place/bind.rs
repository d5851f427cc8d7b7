//! Placement by memory policy: `mbind` sets where new pages are allocated, `move_pages` moves the pages that
//! are present.
//!
//! Policies are MPOL_PREFERRED (one node) and MPOL_INTERLEAVE, which fall back to other nodes when
//! theirs are full. MPOL_BIND is never used: it kills the program instead. Linux's weighted interleave has
//! one set of weights for the whole system, so weighted placements are set as layers that are interleaved evenly.
//!
//! `mbind` does not move pages here, although it could. That drains every CPU's page lists in each call (56
//! to 200 µs in a probe with two CPUs, against 1.5 µs for the policy alone), and it leaves a page on
//! any node of an interleaved set, although the page has one right node. MPOL_PREFERRED_MANY fits no pattern: the kernel
//! does not take its nodes in turn.

use core::sync::atomic::Ordering::Relaxed;

use super::counters::{Request, RuleCounters};
use super::movement::Movement;
use super::pieces::{Extent, NodeSet, Pattern, Pieces, Target};
use crate::sys::{self, Errno};

const MPOL_DEFAULT: usize = 0;
const MPOL_PREFERRED: usize = 1;
const MPOL_INTERLEAVE: usize = 3;
const MPOL_LOCAL: usize = 4;
/// Node numbers are the machine's, not relative to the nodes that a cpuset allows.
const MPOL_F_STATIC_NODES: usize = 1 << 15;
const MPOL_F_ADDR: usize = 2;
const MPOL_F_MEMS_ALLOWED: usize = 4;

const EACCES: Errno = Errno(13);
const EINVAL: Errno = Errno(22);

/// What became of a request to place an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The kernel was asked for every piece; refusals are counted.
    Placed,
    /// The kernel has no mapping left for a further piece.
    Exhausted,
    /// The kernel allows this process no memory policies.
    Refused(Errno),
    /// The memory's pages are larger than the pieces.
    LargerPages,
}

/// The memory policy of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPolicy {
    mode: usize,
    /// The nodes of the policy.
    pub nodes: NodeSet,
}

impl MemoryPolicy {
    /// The system's default, which is local.
    pub const DEFAULT: Self = Self {
        mode: MPOL_DEFAULT,
        nodes: NodeSet::EMPTY,
    };
    /// A page comes from the node of the CPU that touches it first.
    pub const LOCAL: Self = Self {
        mode: MPOL_LOCAL,
        nodes: NodeSet::EMPTY,
    };

    /// Pages in turn over these nodes.
    pub const fn interleave(nodes: NodeSet) -> Self {
        Self {
            mode: MPOL_INTERLEAVE,
            nodes,
        }
    }

    /// Pages of this node, while it has any.
    pub const fn preferred(node: NodeSet) -> Self {
        Self {
            mode: MPOL_PREFERRED,
            nodes: node,
        }
    }

    /// The same policy, marked as set by this library.
    pub const fn marked(self) -> Self {
        Self {
            mode: self.mode | MPOL_F_STATIC_NODES,
            ..self
        }
    }

    /// Was it [`Self::marked`]?
    pub fn is_marked(&self) -> bool {
        const PREFERRED: usize = MPOL_PREFERRED | MPOL_F_STATIC_NODES;
        const INTERLEAVE: usize = MPOL_INTERLEAVE | MPOL_F_STATIC_NODES;
        matches!(self.mode, PREFERRED | INTERLEAVE)
    }

    /// Reads the value of [`nearpage_wire::POLICY_VARIABLE`].
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut numbers = text.split(|byte| matches!(byte, b':' | b','));
        let number = |digits: &[u8]| core::str::from_utf8(digits).ok()?.parse::<u32>().ok();
        let mode = number(numbers.next()?)?;
        let mut nodes = NodeSet::EMPTY;
        for digits in numbers.filter(|digits| !digits.is_empty()) {
            nodes.insert(number(digits)?);
        }
        Some(Self {
            mode: mode as usize,
            nodes,
        })
    }
}

/// The calling thread's policy.
pub fn policy() -> Result<MemoryPolicy, Errno> {
    let mut nodes = NodeSet::EMPTY;
    let mode = sys::get_mempolicy(&mut nodes.words, 0, 0)?;
    Ok(MemoryPolicy {
        mode: mode as usize,
        nodes,
    })
}

/// Sets the calling thread's policy. Threads that it creates from now on have it too.
pub fn set_policy(policy: &MemoryPolicy) -> Result<usize, Errno> {
    match policy.nodes.is_empty() {
        true => sys::set_mempolicy(policy.mode, &[]),
        false => sys::set_mempolicy(policy.mode, &policy.nodes.words),
    }
}

/// Has the memory at this address no policy of its own?
pub fn has_no_policy(address: usize) -> bool {
    let mut nodes = NodeSet::EMPTY;
    sys::get_mempolicy(&mut nodes.words, address, MPOL_F_ADDR) == Ok(MPOL_DEFAULT as u32)
}

/// Leaves a range to first touch, whatever the policy of the process. Pages that are present stay.
pub fn keep_local(start: usize, end: usize) -> Result<usize, Errno> {
    sys::mbind(start, end.saturating_sub(start), MPOL_LOCAL, &[], 0)
}

/// Nodes on which this process may have memory.
pub fn allowed_nodes() -> Result<NodeSet, Errno> {
    let mut nodes = NodeSet::EMPTY;
    sys::get_mempolicy(&mut nodes.words, 0, MPOL_F_MEMS_ALLOWED)?;
    Ok(nodes)
}

/// The error if the kernel refuses this process every memory policy.
pub fn refusal() -> Option<Errno> {
    const PROBED_BYTES: usize = 4096;
    let address = sys::reserve(PROBED_BYTES).ok()?;
    let asked = sys::mbind(address, PROBED_BYTES, MPOL_DEFAULT, &[], 0);
    // SAFETY: mapped above for this alone.
    let _ = unsafe { sys::munmap(address, PROBED_BYTES) };
    asked.err().filter(is_refusal)
}

fn is_refusal(error: &Errno) -> bool {
    matches!(*error, sys::EPERM | sys::ENOSYS | EACCES)
}

/// Sets the policies of an object's pieces and moves the pages that are present. Pieces for nodes that are not
/// allowed are left to the policy of the process, or kept local if that policy `spreads` pages.
pub fn place(
    extent: Extent,
    pieces: Pieces<'_>,
    (allowed, spreads): (&NodeSet, bool),
    counters: &RuleCounters,
) -> Outcome {
    let mut outcome = Outcome::Placed;
    for piece in pieces {
        let (mode, nodes) = match piece.target {
            Target::Node(node) => (MPOL_PREFERRED, NodeSet::of(node)),
            Target::Interleave(nodes) => (MPOL_INTERLEAVE, nodes),
        };
        let (mode, nodes) = match nodes.intersection(allowed) {
            nodes if !nodes.is_empty() => (mode, nodes),
            _ => {
                let pages = (piece.end - piece.start) / extent.page_bytes;
                counters.missing_node_pages.fetch_add(pages as u64, Relaxed);
                if !spreads {
                    continue;
                }
                (MPOL_LOCAL, NodeSet::EMPTY)
            }
        };
        match sys::mbind(piece.start, piece.end - piece.start, mode, &nodes.words, 0) {
            Ok(_) => {}
            Err(error) if is_refusal(&error) => return Outcome::Refused(error),
            Err(EINVAL) if extent.unit_bytes == extent.page_bytes => return Outcome::LargerPages,
            Err(error) => {
                counters.failures.add(Request::Bind, error, 1);
                if error == sys::ENOMEM {
                    outcome = Outcome::Exhausted;
                    break;
                }
            }
        }
    }
    Movement::of(extent, counters).object(pieces, allowed);
    outcome
}

/// Moves the present pages of a range to the nodes of the pattern, and sets no policy.
pub fn move_present(
    extent: Extent,
    pattern: &Pattern<'_>,
    allowed: &NodeSet,
    counters: &RuleCounters,
) {
    Movement::of(extent, counters).object(Pieces::new(extent, *pattern), allowed);
}

/// Removes the policy of a range, so that the policy of the process holds again. Pages stay where they are.
pub fn reset(start: usize, length: usize) {
    // If a part of the range is unmapped, the kernel still resets the other part.
    let _ = sys::mbind(start, length, MPOL_DEFAULT, &[], 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read() {
        let nodes = NodeSet::of(1);
        assert_eq!(
            MemoryPolicy::parse(b"1:1"),
            Some(MemoryPolicy::preferred(nodes))
        );
        assert!(MemoryPolicy::preferred(nodes).marked().is_marked());
        assert!(!MemoryPolicy::preferred(nodes).is_marked() && !MemoryPolicy::DEFAULT.is_marked());
        assert_eq!(MemoryPolicy::parse(b"4:"), Some(MemoryPolicy::LOCAL));
        assert_eq!(MemoryPolicy::parse(b"4"), Some(MemoryPolicy::LOCAL));
        let mut both = nodes;
        both.insert(65);
        assert_eq!(
            MemoryPolicy::parse(b"3:1,65"),
            Some(MemoryPolicy::interleave(both))
        );
        for text in ["", "x", "3:a", ":1", "-1:0"] {
            assert_eq!(MemoryPolicy::parse(text.as_bytes()), None, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_policy_or_none(text in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..40)) {
            MemoryPolicy::parse(&text);
        }
    }

    /// Each thread has a policy of its own, so that this disturbs no other test.
    #[test]
    fn a_threads_policy_is_set_and_asked_for() {
        std::thread::spawn(|| {
            let before = policy().unwrap();
            let node = allowed_nodes().unwrap();
            let ours = MemoryPolicy::interleave(NodeSet::of(node.nth(0).unwrap())).marked();
            set_policy(&ours).unwrap();
            assert_eq!(policy(), Ok(ours));
            let inherited = std::thread::spawn(policy).join().unwrap();
            assert_eq!(inherited, Ok(ours));
            set_policy(&MemoryPolicy::LOCAL).unwrap();
            assert!(!policy().unwrap().is_marked());
            set_policy(&before).unwrap();
            assert_eq!(policy(), Ok(before));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn memory_that_is_kept_local_has_a_policy() {
        let address = sys::reserve(8192).unwrap();
        assert!(has_no_policy(address));
        keep_local(address, address + 4096).unwrap();
        assert!(!has_no_policy(address) && has_no_policy(address + 4096));
        reset(address, 8192);
        assert!(has_no_policy(address));
        // SAFETY: mapped above for this alone.
        unsafe { sys::munmap(address, 8192) }.unwrap();
    }
}
