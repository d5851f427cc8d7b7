//! The processes of a trace, for which plans are looked up: their threads, pages and objects as they were traced.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use nearpage_machine::{CpuId, Machine};
use nearpage_plan::{
    Compact, Evaluated, LatePlacement, ModuleImage, ModuleName, Phase, Plan, ProgramImage,
    SearchPaths, Target, translate,
};
use nearpage_recording::trace::{PageIndex, Touch, Trace};
use nearpage_recording::{Module, Object, Recording, ThreadIndex};
use nearpage_wire::pieces::Extent;

use crate::placed_objects::{module_name, place_objects, second_thread_ns};
use crate::programs::program;

/// The processes of a trace, for which plans are looked up.
pub struct Processes<'a> {
    pub(super) recording: &'a Recording,
    pub(super) all: Vec<Process<'a>>,
    /// Number of pages in the trace.
    pub(super) pages: usize,
}

impl<'a> Processes<'a> {
    /// The processes of a recording, as they were traced on a machine.
    pub fn of(recording: &'a Recording, trace: &Trace, machine: &'a Machine) -> Self {
        let threads = recording.tables.threads.iter();
        let mut pids: Vec<u32> = threads.map(|thread| thread.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        let files: HashSet<u32> = trace.file_pages().into_iter().map(|file| file.0).collect();
        let process = |pid| Process::new(recording, trace, machine, &files, pid);
        Self {
            recording,
            all: pids.into_iter().map(process).collect(),
            pages: trace.pages().len(),
        }
    }
}

/// Offset of a function in the file of its module, and its size in bytes.
fn by_name(function: &str, module: &Module) -> Option<(u64, u64)> {
    let image = recorded_image(module)?;
    let symbol = *image.functions(function).first()?;
    Some((symbol.offset, symbol.size_bytes))
}

/// A module's file, if it is still the recorded build.
pub fn recorded_image(module: &Module) -> Option<ModuleImage> {
    let image = ModuleImage::load(&module.file()).ok()?;
    (image.build_id == module.build_id).then_some(image)
}

/// A page of the trace, and the time in which it was at its address.
pub(super) struct Page {
    pub address: u64,
    pub since_ns: u64,
    pub until_ns: u64,
    pub number: usize,
    pub first_touch: Option<Touch>,
    /// True for pages of a file, which other processes may map.
    pub is_of_file: bool,
}

impl Page {
    /// True if the page ever belonged to the object. If the page is unmapped and its address touched again, later
    /// contents belong to the next page of that address.
    pub fn is_of(&self, object: &Object) -> bool {
        let outlived = object.born_ns > self.since_ns && object.died_ns > self.until_ns;
        self.since_ns < object.died_ns && object.born_ns < self.until_ns && !outlived
    }
}

/// One process of the recording.
pub(super) struct Process<'a> {
    pub recording: &'a Recording,
    pub machine: &'a Machine,
    pub pid: u32,
    pub program: nearpage_plan::Program,
    /// Threads in order of creation: team, number in the team, index in the recording, CPU.
    pub threads: Vec<(&'a str, u32, ThreadIndex, CpuId)>,
    /// By address, then by time.
    pub pages: Vec<Page>,
    /// Its program on disk, read at first use.
    pub image: OnceCell<Option<ProgramImage>>,
}

impl<'a> Process<'a> {
    fn new(
        recording: &'a Recording,
        trace: &Trace,
        machine: &'a Machine,
        files: &HashSet<u32>,
        pid: u32,
    ) -> Self {
        let threads = trace.threads().iter().filter_map(|traced| {
            let thread = recording.tables.threads.get(traced.thread.0 as usize)?;
            let team = thread.team.as_str();
            let member = (team, thread.team_index, traced.thread, traced.cpu);
            (thread.pid == pid).then_some(member)
        });
        let mut pages: Vec<Page> = (0..trace.pages().len())
            .filter(|&number| trace.pid(PageIndex(number as u32)) == pid)
            .map(|number| {
                let place = trace.pages().place(PageIndex(number as u32));
                Page {
                    address: place.address,
                    since_ns: place.first_touch.map_or(0, |touch| touch.time_ns),
                    until_ns: u64::MAX,
                    number,
                    first_touch: place.first_touch,
                    is_of_file: files.contains(&(number as u32)),
                }
            })
            .collect();
        pages.sort_unstable_by_key(|page| (page.address, page.since_ns, page.number));
        for at in 1..pages.len() {
            if pages[at - 1].address == pages[at].address {
                pages[at - 1].until_ns = pages[at].since_ns;
            }
        }
        Self {
            recording,
            machine,
            pid,
            program: program(&recording.tables, &recording.metadata, pid),
            threads: threads.collect(),
            pages,
            image: OnceCell::new(),
        }
    }

    /// The process's pages that begin in a range of addresses.
    pub fn pages_within(&self, range: Range<u64>) -> impl Iterator<Item = &Page> {
        let first = self
            .pages
            .partition_point(|page| page.address < range.start);
        let from = self.pages[first..].iter();
        from.take_while(move |page| page.address < range.end)
    }

    /// Time at which its second thread was created.
    pub fn second_thread_ns(&self) -> u64 {
        second_thread_ns(&self.recording.tables, self.pid)
    }

    /// The range of whole pages that placements of an object are about; none for objects of fewer than two pages.
    pub fn pages_of(&self, object: &Object) -> Option<Range<u64>> {
        let page_bytes = self.machine.page_bytes as usize;
        let extent = Extent {
            address: object.address as usize,
            size_bytes: object.size_bytes as usize,
            page_bytes,
            unit_bytes: page_bytes,
        };
        let (start, end) = extent.pages()?;
        Some(start as u64..end as u64)
    }

    /// True if the plan is for this program, in any build.
    pub fn runs(&self, plan: &Plan) -> bool {
        let same = |planned: &str, own: &str| !planned.is_empty() && planned == own;
        same(&plan.program.build_id, &self.program.build_id)
            || same(&plan.program.executable, &self.program.executable)
            || plan.program.build_id.is_empty() && plan.program.executable.is_empty()
    }

    /// The program on disk, if it is the recorded build: objects of other builds are found by their symbols.
    fn image(&self) -> Option<&ProgramImage> {
        let read = || {
            let modules = &self.recording.tables.modules;
            let own = modules.iter().find(|module| {
                !module.build_id.is_empty() && module.build_id == self.program.build_id
            })?;
            let image =
                ProgramImage::load(own.file().as_os_str(), &SearchPaths::from_environment())
                    .ok()?;
            (image.program.build_id == own.build_id).then_some(image)
        };
        self.image.get_or_init(read).as_ref()
    }

    /// Pages with a phase's function, and the function's bytes in each. The function is found by its offset in the
    /// recorded build, and by name in another build.
    pub fn entry_of(&self, phase: &Phase) -> Vec<(u32, Range<u32>)> {
        let tables = &self.recording.tables;
        let own = tables.mappings.iter().filter(|one| one.pid == self.pid);
        let mut functions: Vec<(u64, u64)> = Vec::new();
        for mapping in own {
            let Some(module) = tables.modules.get(mapping.module.0 as usize) else {
                continue;
            };
            let is_its_build = !phase.build_id.is_empty() && phase.build_id == module.build_id;
            if !is_its_build && phase.module != module.file_name() {
                continue;
            }
            let found = match is_its_build || phase.build_id.is_empty() && phase.size_bytes > 0 {
                true => Some((phase.offset, phase.size_bytes)),
                false => by_name(&phase.function, module),
            };
            functions.extend(found.map(|(offset, size_bytes)| {
                let at = |offset: u64| offset.wrapping_add(mapping.bias);
                (at(offset), at(offset.saturating_add(size_bytes)))
            }));
        }
        functions.sort_unstable();
        functions.dedup();
        let page_bytes = self.machine.page_bytes;
        let in_pages = functions.into_iter().flat_map(|(start, end)| {
            let pages = self.pages_within(start & !(page_bytes - 1)..end);
            pages.map(move |page| {
                let last = end.min(page.address.saturating_add(page_bytes));
                let bytes = [start.max(page.address), last].map(|at| (at - page.address) as u32);
                (page.number as u32, bytes[0]..bytes[1])
            })
        });
        in_pages.collect()
    }

    /// True if the module with this file name has this build ID.
    pub fn has_build(&self, file_name: &str, build_id: &str) -> bool {
        let mut modules = self.recording.tables.modules.iter().map(module_name);
        modules.any(|module| module.file_name == file_name && module.build_id == build_id)
    }

    pub fn executable(&self) -> ModuleName<'_> {
        ModuleName {
            build_id: &self.program.build_id,
            file_name: &self.program.executable,
        }
    }

    pub fn rank(&self) -> Option<u32> {
        self.recording.metadata.rank
    }

    /// Threads of a team by number, each number once, with their CPUs.
    fn members(&self, team: &str) -> Vec<(ThreadIndex, CpuId)> {
        let members = self.threads.iter().filter(|(name, ..)| *name == team);
        let mut members: Vec<_> = members
            .map(|&(_, index, thread, cpu)| (index, (thread, cpu)))
            .collect();
        members.sort_by_key(|&(index, _)| index);
        members.dedup_by_key(|&mut (index, _)| index);
        members.into_iter().map(|(_, member)| member).collect()
    }

    /// Threads of the plan's first team that go to another node when `places` change from the first to the second, with
    /// the node's position; none if the team has another size.
    pub fn moved(&self, plan: &Plan, places: [&[u32]; 2]) -> Option<Vec<(ThreadIndex, u16)>> {
        let members = self.members(&plan.teams.first()?.name);
        if members.len() != places[1].len() {
            return None;
        }
        // Places for another number of threads had no effect before, either.
        let places = places.map(|places| match places.len() == members.len() {
            true => places,
            false => &[],
        });
        let node = |places: &[u32], number: usize| {
            let place = places.get(number).map_or(number, |&place| place as usize);
            let node = self.machine.node_of(members.get(place)?.1)?;
            self.machine.position(node)
        };
        let moves = (0..members.len()).filter_map(|number| {
            let [before, after] = places.map(|places| node(places, number));
            let moves = before != after;
            Some((members[number].0, after.filter(|_| moves)? as u16))
        });
        Some(moves.collect())
    }

    pub fn translate(&self, plan: &Plan, places: &[u32]) -> Result<Compact, nearpage_plan::Error> {
        let mut teams: HashMap<String, Vec<CpuId>> = HashMap::new();
        for (number, team) in plan.teams.iter().enumerate() {
            let cpus = self.members(&team.name).into_iter().map(|(_, cpu)| cpu);
            let mut cpus: Vec<CpuId> = cpus.collect();
            if number == 0 && places.len() == cpus.len() {
                cpus = places.iter().map(|&place| cpus[place as usize]).collect();
            }
            if !cpus.is_empty() {
                teams.insert(team.name.clone(), cpus);
            }
        }
        let threads = self.threads.iter().map(|&(.., cpu)| cpu).collect();
        let target = Target {
            has_copies: true,
            later: LatePlacement::AsPlanned,
            ..Target::of_recorded(self.machine, teams, threads)
        };
        translate(
            std::slice::from_ref(plan),
            &[],
            &target,
            self.image().map_or(&[], std::slice::from_ref),
        )
    }

    /// Calls `each` with the objects that rules place, in order of birth.
    pub fn place_objects(&self, compact: &Compact, mut each: impl FnMut(&Object, &Evaluated)) {
        let rules = compact.process(self.executable(), self.rank(), self.machine.page_bytes);
        let tables = &self.recording.tables;
        place_objects(tables, self.pid, rules, |_, object, evaluated| {
            if let Some(evaluated) = evaluated {
                each(object, &evaluated);
            }
        });
    }
}

#[cfg(test)]
mod tests;
