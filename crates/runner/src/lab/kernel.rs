//! Time of the guest's kernel by function, and by purpose of the functions.
//!
//! Over 500 lines: most are the table of functions' names.

use std::collections::HashMap;

use nearpage_amount::{percent, time};
use nearpage_wire::lab::LabLine;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const FS_PER_S: f64 = 1e15;
/// Number of functions in the result.
const FUNCTIONS_TOLD: usize = 20;
/// Limit of the number of symbols; Linux has some 200,000 with its modules.
const SYMBOLS_MAX: usize = 4_000_000;
/// Number of groups in the text.
const GROUPS_TOLD: usize = 6;
/// Name of the group of all other functions.
const OTHER: &str = "other";

/// Purposes of functions, by prefix of their names; the first match counts. Names are from Linux 6.1, 6.12 and 7.2. Parts of
/// a split function, `name.cold` and `name.part.0`, match the same prefix.
const GROUPS: &[(&str, &[&str])] = &[
    // `copy_page_range` copies page tables. The line precedes the prefix `copy_page`, which would match as well.
    ("starting and ending processes", &["copy_page_range"]),
    (
        "clearing and copying pages",
        &[
            "clear_page",
            "clear_huge_page",
            "clear_highpage",
            "clear_subpage",
            "copy_page",
            "copy_mc",
            "copy_subpage",
            "copy_huge_page",
            "copy_user_highpage",
            "folio_copy",
            "clear_user_highpage",
            "folio_zero_user",
        ],
    ),
    (
        "NUMA balancing",
        &[
            "task_numa",
            "do_numa_page",
            "do_huge_pmd_numa",
            "change_prot",
            "change_pte",
            "change_pmd",
            "change_huge_pmd",
            "change_p4d",
            "change_pud",
            "should_numa",
            "numa_",
            "mpol_misplaced",
            "task_tick_numa",
            "init_numa",
            "update_numa",
            "task_scan",
            "pte_numa",
            "folio_last_cpupid",
            "task_cpu_possible",
        ],
    ),
    (
        "migration",
        &[
            "migrate_",
            "do_migrate",
            "do_move_pages",
            "kernel_move_pages",
            "__x64_sys_move_pages",
            "__x64_sys_mbind",
            "do_mbind",
            "queue_pages",
            "queue_folios",
            "add_page_for_migration",
            "move_to_new",
            "move_pages",
            "remove_migration",
            "try_to_migrate",
            "rmap_walk",
            "folio_migrate",
            "alloc_migration",
            "alloc_misplaced",
            "isolate_lru",
            "isolate_page",
            "folio_isolate",
            "putback_",
            "do_pages_move",
            "do_pages_stat",
            "set_pmd_migration",
            "new_page",
            "__unmap_and_move",
            "unmap_and_move",
            "page_vma_mapped_walk",
            "numamigrate",
            "compact",
            "isolate_",
        ],
    ),
    (
        "khugepaged",
        &["khugepaged", "collapse_", "hpage_collapse", "__collapse"],
    ),
    (
        "page faults",
        &[
            "asm_exc_page_fault",
            "exc_page_fault",
            "do_user_addr_fault",
            "handle_mm_fault",
            "__handle_mm_fault",
            "handle_pte_fault",
            "do_anonymous_page",
            "do_huge_pmd",
            "__do_huge_pmd",
            "do_fault",
            "do_read_fault",
            "do_cow_fault",
            "do_shared_fault",
            "do_wp_page",
            "wp_",
            "filemap_map_pages",
            "next_uptodate",
            "finish_fault",
            "do_set_pte",
            "do_swap_page",
            "find_vma",
            "lock_vma_under",
            "lock_mm_and_find",
            "vma_lookup",
            "error_entry",
            "error_return",
            "sync_regs",
            "mem_cgroup_charge",
            "__mem_cgroup_charge",
            "set_pte_range",
            "vma_alloc",
            "hugepage_vma_check",
            "thp_",
        ],
    ),
    (
        "TLB flushes",
        &[
            "flush_tlb",
            "native_flush_tlb",
            "__flush_tlb",
            "tlb_",
            "arch_tlbbatch",
            "__native_tlb",
            "ptep_clear_flush",
            "pmdp_huge_clear_flush",
            "smp_call_function",
            "on_each_cpu",
            "generic_smp_call",
            "__flush_smp",
            "flush_smp",
            "csd_",
            "sysvec_call_function",
            "asm_sysvec_call_function",
            "llist_",
        ],
    ),
    (
        "allocating and freeing memory",
        &[
            "get_page_from_freelist",
            "__alloc_pages",
            "__alloc_frozen",
            "alloc_pages",
            "alloc_anon",
            "rmqueue",
            "__rmqueue",
            "free_unref",
            "free_pcp",
            "__free_",
            "free_pages",
            "free_compound",
            "prep_",
            "post_alloc",
            "lru_",
            "folio_add",
            "__folio",
            "folio_batch",
            "release_pages",
            "__pagevec",
            "zap_",
            "__zap_",
            "unmap_",
            "__mod_",
            "mod_",
            "folio_remove_rmap",
            "page_remove_rmap",
            "page_add",
            "kmem_cache",
            "__kmem",
            "kmalloc",
            "__kmalloc",
            "kfree",
            "___slab",
            "__slab",
            "slab_",
            "memcg_",
            "mem_cgroup",
            "charge_memcg",
            "uncharge",
            "get_mem_cgroup",
            "__alloc",
            "policy_node",
            "get_vma_policy",
            "mas_",
            "vm_",
            "mmap_",
            "do_mmap",
            "__mmap",
            "exit_mmap",
            "free_pgtables",
            "pte_alloc",
            "__pte_alloc",
            "pmd_",
        ],
    ),
    (
        "scheduler",
        &[
            "schedule",
            "__schedule",
            "pick_",
            "__pick",
            "enqueue_",
            "dequeue_",
            "update_curr",
            "update_load",
            "__update_load",
            "update_rq",
            "update_cfs",
            "update_sd",
            "update_blocked",
            "update_min",
            "update_group",
            "try_to_wake",
            "ttwu",
            "wake_up",
            "__wake_up",
            "wake_q",
            "select_task",
            "select_idle",
            "load_balance",
            "sched_balance",
            "find_busiest",
            "find_idlest",
            "newidle",
            "rebalance",
            "run_rebalance",
            "set_next",
            "put_prev",
            "check_preempt",
            "wakeup_preempt",
            "task_tick",
            "scheduler_tick",
            "sched_tick",
            "sched_",
            "prepare_task",
            "finish_task",
            "__switch_to",
            "switch_",
            "context_switch",
            "cpu_util",
            "migration_cpu_stop",
            "resched",
            "set_task_cpu",
            "migrate_task",
            "place_entity",
            "reweight",
            "psi_",
            "nohz_",
            "_nohz",
            "cpuacct",
            "ret_from_fork",
        ],
    ),
    (
        "idle",
        &[
            "do_idle",
            "default_idle",
            "arch_cpu_idle",
            "cpuidle",
            "cpu_idle",
            "cpu_startup",
            "tick_nohz_idle",
            "mwait",
            "acpi_idle",
            "intel_idle",
            "menu_",
            "need_update",
            "poll_idle",
            "haltpoll",
            "pv_native_safe_halt",
        ],
    ),
    (
        "locks",
        &[
            "_raw_",
            "native_queued",
            "queued_",
            "__pv_queued",
            "mutex_",
            "__mutex",
            "down_",
            "up_",
            "rwsem_",
            "__down",
            "__up",
            "osq_",
            "__rcu",
            "rcu_",
            "srcu_",
        ],
    ),
    (
        "futexes",
        &[
            "futex_",
            "__futex",
            "do_futex",
            "__x64_sys_futex",
            "get_futex",
            "hash_futex",
            "__get_user",
            "__put_user",
        ],
    ),
    (
        "perf",
        &[
            "perf_",
            "__perf",
            "_perf",
            "event_",
            "visit_groups",
            "ctx_",
            "cpu_clock_event",
            "merge_sched",
        ],
    ),
    (
        "timers and interrupts",
        &[
            "hrtimer",
            "__hrtimer",
            "tick_",
            "clockevents",
            "lapic",
            "timer",
            "run_timer",
            "__run_timer",
            "run_local",
            "sysvec_",
            "asm_sysvec",
            "irq",
            "handle_irq",
            "__irq",
            "do_softirq",
            "__do_softirq",
            "handle_softirq",
            "ktime",
            "read_tsc",
            "update_wall",
            "timekeeping",
            "update_process",
            "account_",
            "cgroup_rstat",
            "native_apic",
            "x2apic",
            "do_IRQ",
            "common_interrupt",
            "asm_common",
            "enter_lazy",
            "apic",
            "native_sched_clock",
            "paravirt_",
            "sched_clock",
        ],
    ),
    (
        "system calls",
        &[
            "entry_",
            "syscall_",
            "do_syscall",
            "__x64_sys",
            "x64_sys",
            "__do_sys",
            "exit_to_user",
            "ret_from",
            "swapgs",
            "irqentry",
            "common_interrupt_return",
            "native_iret",
            "restore_regs",
        ],
    ),
    (
        "starting and ending processes",
        &[
            "copy_process",
            "kernel_clone",
            "dup_",
            "copy_mm",
            "copy_page_range",
            "do_exit",
            "do_execve",
            "begin_new_exec",
            "load_elf",
            "bprm",
            "wait_",
            "do_wait",
            "exit_",
            "release_task",
            "proc_",
            "execve",
        ],
    ),
    (
        "files",
        &[
            "v9fs",
            "p9_",
            "virtio",
            "virtqueue",
            "vring",
            "vp_",
            "req_done",
            "vfs_",
            "filemap",
            "path_",
            "link_path",
            "lookup",
            "__d_lookup",
            "d_",
            "dput",
            "do_sys_open",
            "open",
            "generic_file",
            "copy_user",
            "copyin",
            "copyout",
            "_copy",
            "rep_movs",
            "memcpy",
            "memset",
            "__memcpy",
            "__memset",
            "strn",
            "iov_iter",
            "netfs",
            "fscache",
            "shmem",
            "pipe_",
            "ksys",
            "new_sync",
            "step_into",
            "walk_component",
            "inode",
            "page_cache",
            "xas_",
            "fget",
            "fput",
            "seq_",
            "kernfs",
            "format_decode",
            "vsnprintf",
            "number",
        ],
    ),
];

/// Time of the kernel, summed over CPUs, without idle time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LabKernel {
    /// Time of instructions and stalls, without the kernel's spinning on `pause`.
    pub time_s: f64,
    /// Time by purpose of the functions, most first.
    pub groups: Vec<LabKernelGroup>,
    /// The functions that took most time, most first.
    pub functions: Vec<LabFunction>,
}

/// Time of functions with one purpose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LabKernelGroup {
    /// Purpose of the functions.
    pub name: String,
    /// Time, summed over CPUs.
    pub time_s: f64,
}

/// Time of a function of the kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LabFunction {
    /// Symbol of the function.
    pub name: String,
    /// Purpose of the function.
    pub group: String,
    /// Time, summed over CPUs.
    pub time_s: f64,
}

/// Functions of the kernel, ordered by address.
#[derive(Default)]
pub(super) struct KernelSymbols(Vec<(u64, String)>);

impl KernelSymbols {
    /// Parses `/proc/kallsyms`; empty if the kernel hides addresses.
    pub fn parse(text: &str) -> Self {
        let symbol = |line: &str| {
            let mut words = line.split_ascii_whitespace();
            let address = u64::from_str_radix(words.next()?, 16).ok()?;
            let is_function = matches!(words.next()?, "t" | "T" | "w" | "W");
            let name = words.next()?;
            (is_function && address > 0).then(|| (address, name.to_owned()))
        };
        let mut symbols: Vec<_> = text.lines().filter_map(symbol).take(SYMBOLS_MAX).collect();
        symbols.sort();
        Self(symbols)
    }

    /// The function at an address. If the function has several names, the first is returned.
    fn find(&self, address: u64) -> Option<&str> {
        let behind = self.0.partition_point(|(begin, _)| *begin <= address);
        let (begin, _) = self.0.get(behind.checked_sub(1)?)?;
        let first = self.0.partition_point(|(other, _)| other < begin);
        Some(&self.0[first].1)
    }
}

impl LabKernel {
    /// Sums the tracer's times of kernel blocks by function.
    pub(super) fn new(lines: &[LabLine], symbols: &KernelSymbols) -> Option<Self> {
        if symbols.0.is_empty() {
            return None;
        }
        let mut functions: HashMap<&str, u64> = HashMap::new();
        for line in lines {
            if let LabLine::Kernel { address, time_fs } = line {
                let function = symbols.find(*address).unwrap_or("unknown");
                let time = functions.entry(function).or_default();
                *time = time.saturating_add(*time_fs);
            }
        }
        let mut groups: HashMap<&str, u64> = HashMap::new();
        for (function, time_fs) in &functions {
            let time = groups.entry(group(function)).or_default();
            *time = time.saturating_add(*time_fs);
        }
        let time_s = |fs: u64| fs as f64 / FS_PER_S;
        Some(Self {
            time_s: time_s(
                functions
                    .values()
                    .fold(0, |all, fs| all.saturating_add(*fs)),
            ),
            groups: most_first(groups)
                .map(|(name, fs)| LabKernelGroup {
                    name: name.to_owned(),
                    time_s: time_s(fs),
                })
                .collect(),
            functions: most_first(functions)
                .take(FUNCTIONS_TOLD)
                .map(|(name, fs)| LabFunction {
                    name: name.to_owned(),
                    group: group(name).to_owned(),
                    time_s: time_s(fs),
                })
                .collect(),
        })
    }

    /// The groups that took most time, as text.
    pub fn to_words(&self) -> Option<String> {
        if self.time_s <= 0.0 {
            return None;
        }
        let groups = self.groups.iter().take(GROUPS_TOLD);
        let groups: Vec<String> = groups
            .map(|group| format!("{} {}", group.name, percent(group.time_s / self.time_s)))
            .collect();
        Some(format!(
            "{}: {}",
            time(1e9 * self.time_s),
            groups.join(", ")
        ))
    }
}

/// Times in descending order; ties are ordered by name, so that the order does not depend on the map.
fn most_first(times: HashMap<&str, u64>) -> impl Iterator<Item = (&str, u64)> {
    let mut times: Vec<(&str, u64)> = times.into_iter().collect();
    times.sort_by(|(one, one_fs), (other, other_fs)| other_fs.cmp(one_fs).then(one.cmp(other)));
    times.into_iter()
}

fn group(function: &str) -> &'static str {
    let fits = |beginnings: &[&str]| beginnings.iter().any(|word| function.starts_with(word));
    let group = GROUPS.iter().find(|(_, beginnings)| fits(beginnings));
    group.map_or(OTHER, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYMBOLS: &str = "ffffffff81000000 T _stext\nffffffff81000000 T _text\nffffffff81001000 t clear_page_erms\n\
                           ffffffff81002000 T do_anonymous_page\nffffffff81003000 D jiffies\n\
                           ffffffffc0000000 t v9fs_read\t[9p]\nnonsense\n";

    fn kernel(address: u64, time_fs: u64) -> LabLine {
        LabLine::Kernel { address, time_fs }
    }

    #[test]
    fn time_is_summed_by_function_and_group() {
        let symbols = KernelSymbols::parse(SYMBOLS);
        let second = 1_000_000_000_000_000;
        let lines = [
            kernel(0xffff_ffff_8100_1000, second),
            kernel(0xffff_ffff_8100_1ff0, second),
            kernel(0xffff_ffff_8100_2004, second),
            kernel(0xffff_ffff_c000_0001, second / 2),
            kernel(1, second / 2),
        ];
        let kernel = LabKernel::new(&lines, &symbols).unwrap();
        let functions: Vec<_> = kernel
            .functions
            .iter()
            .map(|function| (&*function.name, &*function.group, function.time_s))
            .collect();
        assert_eq!(
            functions,
            [
                ("clear_page_erms", "clearing and copying pages", 2.0),
                ("do_anonymous_page", "page faults", 1.0),
                ("unknown", "other", 0.5),
                ("v9fs_read", "files", 0.5),
            ]
        );
        assert_eq!(
            kernel.to_words().unwrap(),
            "4 s: clearing and copying pages 50 %, page faults 25 %, files 12 %, other 12 %"
        );
    }

    #[test]
    fn hidden_addresses_are_no_symbols() {
        let hidden = KernelSymbols::parse("0000000000000000 T _stext\n");
        assert_eq!(LabKernel::new(&[kernel(5, 5)], &hidden), None);
    }

    #[test]
    fn functions_are_in_the_group_that_they_work_for() {
        for (function, name) in [
            ("migrate_pages_batch", "migration"),
            ("task_numa_fault", "NUMA balancing"),
            ("copy_page", "clearing and copying pages"),
            ("clear_highpages_kasan_tagged", "clearing and copying pages"),
            ("copy_page_range", "starting and ending processes"),
            ("do_huge_pmd_numa_page", "NUMA balancing"),
            ("native_queued_spin_lock_slowpath", "locks"),
            ("get_page_from_freelist", "allocating and freeing memory"),
            ("no_such_function", "other"),
        ] {
            assert_eq!(group(function), name, "{function}");
        }
    }
}
