//! Where the guest's kernel spent its time: blocks by function, functions by what they are for.

use std::collections::HashMap;

use nearpage_wire::lab::LabLine;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const FS_PER_S: f64 = 1e15;
/// Functions that are told.
const FUNCTIONS_TOLD: usize = 20;
/// Most symbols that are read; Linux has some 200,000 with its modules.
const SYMBOLS_MAX: usize = 4_000_000;
/// Groups that are told in words.
const GROUPS_TOLD: usize = 6;
/// What functions of no other group are called.
const OTHER: &str = "other";

/// What functions are for: a line for each group, its name and the beginnings of its functions' names.
const GROUPS: &str = include_str!("kernel_groups");

/// Where the kernel's time went: of all CPUs together, without what they idled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LabKernel {
    /// Instructions and stalls; what the kernel's own spinning on `pause` takes is left out.
    pub time_s: f64,
    /// By what functions are for, most first.
    pub groups: Vec<LabKernelGroup>,
    /// The functions that took most.
    pub functions: Vec<LabFunction>,
}

/// Time of the functions that are for something.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LabKernelGroup {
    /// What for.
    pub name: String,
    /// Time of all CPUs.
    pub time_s: f64,
}

/// Time of a function of the kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LabFunction {
    /// Its symbol.
    pub name: String,
    /// What it is for.
    pub group: String,
    /// Time of all CPUs.
    pub time_s: f64,
}

/// The kernel's functions, in order of their addresses.
#[derive(Default)]
pub(super) struct KernelSymbols(Vec<(u64, String)>);

impl KernelSymbols {
    /// From `/proc/kallsyms`; none where the kernel hides addresses.
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

    /// The function that an address is in. Of several names for it the first counts.
    fn find(&self, address: u64) -> Option<&str> {
        let behind = self.0.partition_point(|(begin, _)| *begin <= address);
        let (begin, _) = self.0.get(behind.checked_sub(1)?)?;
        let first = self.0.partition_point(|(other, _)| other < begin);
        Some(&self.0[first].1)
    }
}

impl LabKernel {
    /// From what the tracer counted of the kernel's blocks.
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
            time_s: functions.values().map(|fs| time_s(*fs)).sum(),
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

    /// In words, what took most.
    pub fn to_words(&self) -> Option<String> {
        if self.time_s <= 0.0 {
            return None;
        }
        let groups = self.groups.iter().take(GROUPS_TOLD);
        let groups: Vec<String> = groups
            .map(|group| format!("{} {:.0} %", group.name, 100.0 * group.time_s / self.time_s))
            .collect();
        Some(format!("{:.3} s: {}", self.time_s, groups.join(", ")))
    }
}

/// In an order that does not depend on the map's.
fn most_first(times: HashMap<&str, u64>) -> impl Iterator<Item = (&str, u64)> {
    let mut times: Vec<(&str, u64)> = times.into_iter().collect();
    times.sort_by(|(one, one_fs), (other, other_fs)| other_fs.cmp(one_fs).then(one.cmp(other)));
    times.into_iter()
}

fn group(function: &str) -> &'static str {
    let groups = GROUPS.lines().filter(|line| !line.starts_with('#'));
    let mut groups = groups.filter_map(|line| line.split_once(": "));
    let fits = |beginnings: &str| {
        let mut beginnings = beginnings.split_ascii_whitespace();
        beginnings.any(|beginning| function.starts_with(beginning))
    };
    let found = groups.find(|(_, beginnings)| fits(beginnings));
    found.map_or(OTHER, |(name, _)| name)
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
            "4.000 s: clearing and copying pages 50 %, page faults 25 %, files 12 %, other 12 %"
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
