//! Reads the plan for this process: its file, its section, and what it needs to know of the machine.

use core::mem;
use core::sync::atomic::{AtomicBool, AtomicU32};

use nearpage_wire::SUMMARY_VARIABLE;
use nearpage_wire::compact_plan::{Header, MAGIC, PHASES_MAX, RULE_LATER, Rule};

use super::bind;
use super::memory::{zeroed, zeroed_slice};
use super::phases::Phase;
use super::pieces::{NODES_MAX, NodeSet};
use super::touched::TouchedObjects;
use super::unmatched_memory::{self, UnmatchedMemory};
use super::{PATH_BYTES_MAX, RuleList, State};
use crate::environment;
use crate::modules::Modules;
use crate::plan::{Plan, PlanError};
use crate::sys::{self, Errno};
use crate::touch;

/// A plan larger than this is not read.
const PLAN_BYTES_MAX: usize = 1 << 26;

/// Why the plan is not used.
pub(super) enum Unusable {
    File(Errno),
    Content(PlanError),
}

impl core::fmt::Display for Unusable {
    fn fmt(&self, text: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::File(Errno(error)) => write!(text, "reading it gives error {error}"),
            Self::Content(why) => why.fmt(text),
        }
    }
}

/// Reads a whole file into memory. If the file were mapped and somebody cut it short, a read would end the program.
fn read_file(path: &[u8]) -> Result<&'static [u8], Errno> {
    let mut terminated = [0; PATH_BYTES_MAX];
    terminated
        .get_mut(..path.len())
        .ok_or(Errno(36))?
        .copy_from_slice(path);
    let terminated = terminated.get(..=path.len()).ok_or(Errno(36))?;
    let file = sys::open(terminated, sys::O_RDONLY)?;
    let bytes = read_all(file);
    sys::close(file);
    bytes
}

fn read_all(file: usize) -> Result<&'static [u8], Errno> {
    let address = sys::reserve(PLAN_BYTES_MAX)?;
    // SAFETY: fresh memory; what is unmapped below lies beyond what is returned.
    let memory = unsafe { core::slice::from_raw_parts_mut(address as *mut u8, PLAN_BYTES_MAX) };
    let mut length = 0;
    let read = loop {
        // Reads the header alone first, so that no other large file is read to its end.
        let wanted = if length < mem::size_of::<Header>() {
            mem::size_of::<Header>()
        } else {
            PLAN_BYTES_MAX
        };
        match memory
            .get_mut(length..wanted)
            .filter(|rest| !rest.is_empty())
            .map(|rest| sys::read(file, rest))
        {
            None | Some(Ok(0)) => break Ok(length),
            Some(Ok(read)) => length += read,
            Some(Err(sys::EINTR)) => {}
            Some(Err(error)) => break Err(error),
        }
        if length >= mem::size_of::<Header>() && !memory.starts_with(&MAGIC) {
            break Ok(length);
        }
    };
    // Whatever the page size, this unmaps no page of the plan.
    let kept = read.unwrap_or(0).next_multiple_of(1 << 16);
    // SAFETY: beyond what was read.
    let _ = unsafe { sys::munmap(address + kept, PLAN_BYTES_MAX - kept) };
    Ok(memory.get(..read?).unwrap_or_default())
}

/// This process's rank, from its launcher's environment variables.
fn rank() -> Option<u32> {
    nearpage_wire::RANK_VARIABLES
        .into_iter()
        .find_map(environment::number)
        .and_then(|rank| u32::try_from(rank).ok())
}

/// Does memory get transparent huge pages that the program did not ask for?
fn huge_pages_in_use() -> bool {
    let mut text = [0; 64];
    let path = b"/sys/kernel/mm/transparent_hugepage/enabled\0";
    let always = sys::read_text(path, &mut text).is_ok_and(|text| text.starts_with(b"[always]"));
    // The C library's malloc can be told to ask for huge pages.
    let tunables = environment::variable("GLIBC_TUNABLES").unwrap_or_default();
    let asked = tunables.split(|byte| *byte == b':').any(|tunable| {
        tunable
            .strip_prefix(b"glibc.malloc.hugetlb=")
            .is_some_and(|value| value.starts_with(b"1") || value.starts_with(b"2"))
    });
    always || asked
}

/// Nodes on which this process may have memory; if the kernel does not tell, all nodes.
fn allowed_nodes() -> NodeSet {
    bind::allowed_nodes().unwrap_or(NodeSet {
        words: [u64::MAX; NODES_MAX / 64],
    })
}

impl RuleList {
    fn new(rules: &'static [Rule], is_of_phase: bool) -> Option<Self> {
        Some(Self {
            rules,
            counters: zeroed_slice(rules.len())?,
            sites: zeroed()?,
            orders: zeroed()?,
            is_of_phase,
        })
    }
}

impl State {
    /// The state for this process; `None` if no section of the plan is for it.
    pub(super) fn read(path: &[u8]) -> Result<Option<&'static Self>, Unusable> {
        let no_memory = || Unusable::File(sys::ENOMEM);
        let bytes = read_file(path).map_err(Unusable::File)?;
        let plan = Plan::parse(bytes).map_err(Unusable::Content)?;
        unmatched_memory::drop_inherited(&plan);
        let modules = zeroed::<Modules>().ok_or_else(no_memory)?;
        // Static objects are placed once the state is complete.
        modules.refresh(&plan, |_| {});
        let Some(executable) = modules.executable() else {
            return Ok(None);
        };
        let rank = rank();
        let Some(section) = plan.section(executable.identity(), rank) else {
            return Ok(None);
        };
        let rules = plan.rules(section);
        let mut phases = [const { None }; PHASES_MAX];
        let planned = plan.phases(section).iter().zip(section.phases[0]..);
        for (slot, (phase, number)) in phases.iter_mut().zip(planned) {
            let list = RuleList::new(plan.phase_rules(phase), true).ok_or_else(no_memory)?;
            let waiting = zeroed().ok_or_else(no_memory)?;
            let pins = plan.phase_pins(phase);
            *slot = Some(Phase::new(phase, number, (list, pins), waiting));
        }
        let allowed = allowed_nodes();
        let unmatched = UnmatchedMemory::read(&plan, rules, &allowed);
        let mut summary_path = [0; PATH_BYTES_MAX];
        let named = environment::variable(SUMMARY_VARIABLE)
            .filter(|path| path.len() < PATH_BYTES_MAX)
            .unwrap_or_default();
        for (to, from) in summary_path.iter_mut().zip(named) {
            *to = *from;
        }
        let state = Self {
            plan,
            section: RuleList::new(rules, false).ok_or_else(no_memory)?,
            phases,
            phases_begun: AtomicU32::new(0),
            pin_rules: plan.pins(section),
            rank,
            modules,
            threads: zeroed().ok_or_else(no_memory)?,
            placed: zeroed().ok_or_else(no_memory)?,
            waiting: zeroed().ok_or_else(no_memory)?,
            mappings: zeroed().ok_or_else(no_memory)?,
            group: zeroed().ok_or_else(no_memory)?,
            touched: TouchedObjects::new(
                rules.len(),
                plan.header.touch_pages_max,
                plan.header.page_bytes as usize,
            )
            .ok_or_else(no_memory)?,
            pins: zeroed().ok_or_else(no_memory)?,
            allowed,
            huge_pages: huge_pages_in_use(),
            can_populate: touch::can_populate(),
            unmatched,
            has_later: rules
                .iter()
                .any(|rule| rule.flags & RULE_LATER != 0 || rule.objects != 0),
            has_second_thread: AtomicBool::new(false),
            bind_refused: AtomicU32::new(0),
            is_finished: AtomicBool::new(false),
            summary_path,
            summary_path_bytes: named.len(),
        };
        let address = sys::reserve(mem::size_of::<Self>()).map_err(Unusable::File)?;
        // SAFETY: fresh memory of that size, page-aligned, never unmapped.
        Ok(Some(unsafe {
            (address as *mut Self).write(state);
            &*(address as *const Self)
        }))
    }
}
