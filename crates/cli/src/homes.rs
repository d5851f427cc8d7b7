//! Where a plan puts the pages of a full recording: its objects, placed by the translated plan as
//! the preload library would place them, and the trace's pages under them; and where its phases begin.

mod rest;

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::path::Path;

use anyhow::bail;
use nearpage_machine::{CpuId, Machine};
use nearpage_plan::{
    Allocation, Compact, Decision, Evaluated, Later, Live, Mechanism, ModuleImage, ModuleName,
    Origin, Phase, Pinning, Placement, Plan, ProgramImage, SearchPaths, Start, Subject, Target,
    translate,
};
use nearpage_recording::trace::{PageIndex, Touch, Trace};
use nearpage_recording::{Module, Object, ObjectKind, Recording, ThreadIndex};
use nearpage_wire::is_runtime_module;
use nearpage_wire::pieces::Extent;

use nearpage_online::AutoParameters;
use nearpage_planner::program;
use nearpage_simulator::{Home, PhaseHomes, PlanHomes};

/// The homes that plans give to pages.
pub struct Homes {
    /// By page; none: left to first touch. The first of the plans that says so has `auto` look after all programs.
    pub plan: PlanHomes,
    /// Decisions, and those of which an object was found in the recording.
    pub decisions: usize,
    pub found: usize,
    /// Pages that were given a home as part of the rest.
    of_rest: usize,
    /// By page: an object's decision was about it, if only to leave it to first touch.
    decided: Vec<bool>,
    /// Names of the others.
    missing: Vec<String>,
    /// What was found again by weaker keys, or scaled.
    warnings: Vec<String>,
}

impl Homes {
    /// The homes of the recording's pages under `plans`, of which each is for one program, with
    /// threads on the CPUs that they were traced on. Pages are taken to be placed when their object
    /// is made, and to stay there: a page that several objects have in turn goes by the first.
    ///
    /// # Errors
    /// A plan that means something that the machine or `auto` does not have, or nothing of the recording.
    pub fn of(plans: &[Plan], processes: &Processes) -> anyhow::Result<Self> {
        let mut homes = Self::with_threads(plans, &[], processes)?;
        let live = plans.iter().find_map(|plan| plan.live.as_ref());
        homes.plan.live = live.map(auto_parameters).transpose()?;
        for plan in plans {
            let mut places: &[u32] = &[];
            for phase in plan.phases.iter().filter(|phase| !phase.is_empty()) {
                let before = places;
                if !phase.threads.is_empty() {
                    places = &phase.threads;
                }
                homes.add_phase(plan, phase, [before, places], processes)?;
            }
        }
        Ok(homes)
    }

    /// The same of what holds from the start, with threads of the first team in each other's places
    /// ([`Phase::threads`]).
    fn with_threads(plans: &[Plan], places: &[u32], processes: &Processes) -> anyhow::Result<Self> {
        let mut homes = Self {
            plan: PlanHomes::nothing(processes.pages),
            decisions: plans.iter().map(|plan| plan.decisions.len()).sum(),
            found: 0,
            of_rest: 0,
            decided: vec![false; processes.pages],
            missing: Vec::new(),
            warnings: Vec::new(),
        };
        let mut found: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); plans.len()];
        for process in &processes.all {
            for (plan, found) in plans.iter().zip(&mut found) {
                if process.runs(plan) {
                    homes.place(plan, places, process, found)?;
                }
            }
        }
        for (plan, found) in plans.iter().zip(found) {
            for (position, decision) in plan.decisions.iter().enumerate() {
                match found.contains(&position) {
                    true => homes.found += 1,
                    false => homes.missing.push(decision.name.clone()),
                }
            }
        }
        Ok(homes)
    }

    /// `places`: whose places threads have, before the phase and in it.
    fn add_phase(
        &mut self,
        plan: &Plan,
        phase: &Phase,
        places: [&[u32]; 2],
        processes: &Processes,
    ) -> anyhow::Result<()> {
        let from_then_on = |decision: &Decision| Decision {
            start: match decision.placement {
                Placement::FirstTouch => Start::SecondThread,
                _ => Start::Allocation,
            },
            ..decision.clone()
        };
        let alone = Plan {
            decisions: phase.decisions.iter().map(from_then_on).collect(),
            ..plan.clone()
        };
        let homes = Self::with_threads(&[alone], places[1], processes)?;
        self.decisions += homes.decisions;
        self.found += homes.found;
        let missing = homes.missing.iter();
        self.missing
            .extend(missing.map(|name| format!("{name} from {} on", phase.function)));
        self.warn(homes.warnings);
        let entry = processes.all.iter().flat_map(|one| one.entry_of(phase));
        let entry: Vec<(u32, Range<u32>)> = entry.collect();
        if entry.is_empty() {
            self.warnings.push(format!(
                "`{}`, with which a phase of the plan begins, was not executed in {}: nothing moves then",
                phase.function,
                processes.recording.folder.display()
            ));
        }
        let mut threads = Vec::new();
        let run_it = processes.all.iter().filter(|process| process.runs(plan));
        for process in run_it.filter(|_| !phase.threads.is_empty()) {
            match process.moved(plan, places) {
                Some(moves) => threads.extend(moves),
                None => self.warnings.push(format!(
                    "threads stay where they are when `{}` begins: the plan is for {}, and there are others",
                    phase.function,
                    phase.threads.len()
                )),
            }
        }
        self.plan.phases.push(PhaseHomes {
            entry,
            homes: homes.plan.homes,
            threads,
        });
        Ok(())
    }

    fn place(
        &mut self,
        plan: &Plan,
        places: &[u32],
        process: &Process,
        found: &mut BTreeSet<usize>,
    ) -> anyhow::Result<()> {
        let compact = process.translate(plan, places)?;
        self.warn(compact.warnings.iter().cloned());
        for (position, decision) in plan.decisions.iter().enumerate() {
            let Subject::Code {
                module,
                build_id,
                pages,
            } = &decision.subject
            else {
                continue;
            };
            let same_build = build_id.is_empty() || process.has_build(module, build_id);
            let runs: &[(u64, u64)] = match pages.is_empty() || !same_build {
                true => &[(0, u64::MAX)],
                false => pages,
            };
            let is_code = |object: &&Object| {
                object.kind == ObjectKind::Code
                    && object.pid == process.pid
                    && object.name == *module
            };
            for object in process.recording.tables.objects.iter().filter(is_code) {
                found.insert(position);
                let end = object.address.saturating_add(object.size_bytes);
                for &(first, count) in runs {
                    let at = |page: u64| page.saturating_mul(plan.page_bytes);
                    let address = |page: u64| object.address.saturating_add(at(page)).min(end);
                    let range = address(first)..address(first.saturating_add(count));
                    self.take(process, object, range, |_| Some(Home::Copies));
                }
            }
        }
        process.place_objects(&compact, |object, evaluated| {
            let Some(position) = compact.decisions[evaluated.rule] else {
                return;
            };
            found.insert(position);
            let Decision {
                placement, start, ..
            } = &plan.decisions[position];
            let home = |node: Option<u16>| match start {
                _ if *placement == Placement::Replicate => Some(Home::Copies),
                Start::Allocation => node.map(Home::Node),
                Start::SecondThread => Some(Home::Later(node)),
                Start::Parallel => Some(Home::Parallel(node)),
            };
            let pages = match (placement, start) {
                (Placement::FirstTouch, Start::Allocation) => process.pages_of(object),
                // Whoever uses a page next takes what else is on it.
                (Placement::FirstTouch, _) => {
                    let first = object.address & !(process.machine.page_bytes - 1);
                    Some(first..object.address.saturating_add(object.size_bytes))
                }
                _ => None,
            };
            if let Some(pages) = pages {
                self.take(process, object, pages, |_| home(None));
            }
            for placed in &evaluated.pages {
                self.take(process, object, placed.start..placed.end, |address| {
                    let node = placed.node(address, process.machine.page_bytes)?;
                    home(Some(process.machine.position(node)? as u16))
                });
            }
        });
        let rest = plan.decisions.iter().enumerate();
        for (position, decision) in rest.filter(|(_, one)| one.subject == Subject::Rest) {
            found.insert(position);
            let nodes = compact.rest(process.executable(), process.rank());
            let nodes = nodes.unwrap_or_default();
            for (page, home) in rest::homes(decision.start, &nodes, process, &self.decided) {
                self.plan.homes[page] = Some(home);
                self.of_rest += 1;
            }
        }
        Ok(())
    }

    /// Gives those of an object's pages that begin between two addresses their homes; `home_of`: what the
    /// plan wants of the page at an address.
    fn take(
        &mut self,
        process: &Process,
        object: &Object,
        range: Range<u64>,
        home_of: impl Fn(u64) -> Option<Home>,
    ) {
        for page in process.pages_within(range) {
            if !self.decided[page.number] && page.is_of(object) {
                self.plan.homes[page.number] = home_of(page.address);
                self.decided[page.number] = true;
            }
        }
    }

    /// Keeps what is new of some warnings.
    fn warn(&mut self, warnings: impl IntoIterator<Item = String>) {
        for warning in warnings {
            if !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
        }
    }

    /// How much of a plan there is in the recording, in a line; with what to know about it.
    pub fn notes(&self, plan: &str) -> Vec<String> {
        let pages = self.plan.homes.iter().flatten().count();
        let mut note = format!(
            "{plan}: objects of {} of {} decisions are in the recording; {pages} of {} pages are placed.",
            self.found,
            self.decisions,
            self.plan.homes.len(),
        );
        if self.of_rest > 0 {
            note += &format!(" Of these, {} are of the rest.", self.of_rest);
        }
        if self.plan.live.is_some() {
            note += " `auto` looks after the program.";
        }
        if !self.missing.is_empty() {
            note += &format!(" Not found: {}.", self.missing.join(", "));
        }
        let warnings = self.warnings.iter();
        std::iter::once(note)
            .chain(warnings.map(|warning| format!("{plan}: {warning}.")))
            .collect()
    }
}

/// What `auto` goes by where a plan has it look after the program.
pub fn auto_parameters(live: &Live) -> anyhow::Result<AutoParameters> {
    let mut parameters = AutoParameters::default();
    for (name, value) in &live.parameters {
        if !parameters.set(name, &value.to_string())? {
            bail!("the plan's [live] has `{name}`, and `auto` has no parameter of that name");
        }
    }
    Ok(parameters)
}

/// Finds the pages of the plan in `file`.
///
/// # Errors
/// A plan of which nothing is in the recording.
pub fn of_file(file: &Path, plan: &Plan, processes: &Processes) -> anyhow::Result<Homes> {
    let homes = Homes::of(std::slice::from_ref(plan), processes)?;
    if homes.decisions > 0 && homes.found == 0 {
        bail!(
            "{}: nothing of this plan for {} is in {}: make one of this recording (`nearpage plan`), or record the \
             program that it is for",
            file.display(),
            plan.program.executable,
            processes.recording.folder.display()
        );
    }
    Ok(homes)
}

/// The processes of a full recording, in which plans are looked for.
pub struct Processes<'a> {
    recording: &'a Recording,
    all: Vec<Process<'a>>,
    /// Pages of the trace.
    pages: usize,
}

impl<'a> Processes<'a> {
    /// Those of a recording, as they were traced on a machine.
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

/// Address of a function in the file of its module, and its bytes.
fn by_name(function: &str, module: &Module) -> Option<(u64, u64)> {
    let image = recorded_image(module)?;
    let symbol = *image.functions(function).first()?;
    Some((symbol.offset, symbol.size_bytes))
}

/// A module's file, where it is still the one that was recorded.
pub fn recorded_image(module: &Module) -> Option<ModuleImage> {
    let image = ModuleImage::load(module.path.as_ref()).ok()?;
    (image.build_id == module.build_id).then_some(image)
}

/// A page of the trace, and how long it was at its address.
struct Page {
    address: u64,
    since_ns: u64,
    until_ns: u64,
    number: usize,
    first_touch: Option<Touch>,
    /// It is a file's, which other processes may map.
    is_of_file: bool,
}

impl Page {
    /// Was it ever the object's? What lies at its address when it is unmapped and touched again is
    /// the next page's.
    fn is_of(&self, object: &Object) -> bool {
        let outlived = object.born_ns > self.since_ns && object.died_ns > self.until_ns;
        self.since_ns < object.died_ns && object.born_ns < self.until_ns && !outlived
    }
}

/// One process of the recording.
struct Process<'a> {
    recording: &'a Recording,
    machine: &'a Machine,
    pid: u32,
    program: nearpage_plan::Program,
    /// Threads in order of creation: team, number in it, what recordings call it, CPU.
    threads: Vec<(&'a str, u32, ThreadIndex, CpuId)>,
    /// By address, then time.
    pages: Vec<Page>,
    /// Its program on disk, read when it is asked for.
    image: OnceCell<Option<ProgramImage>>,
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

    /// Its pages that begin between two addresses.
    fn pages_within(&self, range: Range<u64>) -> impl Iterator<Item = &Page> {
        let first = self
            .pages
            .partition_point(|page| page.address < range.start);
        let from = self.pages[first..].iter();
        from.take_while(move |page| page.address < range.end)
    }

    /// When its second thread came to be.
    fn second_thread_ns(&self) -> u64 {
        let threads = self.recording.tables.threads.iter();
        let ours = threads.filter(|thread| thread.pid == self.pid && thread.order > 0);
        ours.map(|thread| thread.born_ns).min().unwrap_or(u64::MAX)
    }

    /// The pages that placements of an object are about; none of an object of less than two.
    fn pages_of(&self, object: &Object) -> Option<Range<u64>> {
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

    /// Is the plan for this program, rebuilt or not?
    fn runs(&self, plan: &Plan) -> bool {
        let same = |planned: &str, own: &str| !planned.is_empty() && planned == own;
        same(&plan.program.build_id, &self.program.build_id)
            || same(&plan.program.executable, &self.program.executable)
            || plan.program.build_id.is_empty() && plan.program.executable.is_empty()
    }

    /// The program on disk, where it is the build that was recorded: rebuilt programs' objects are
    /// found by their symbols.
    fn image(&self) -> Option<&ProgramImage> {
        let read = || {
            let modules = &self.recording.tables.modules;
            let own = modules.iter().find(|module| {
                !module.build_id.is_empty() && module.build_id == self.program.build_id
            })?;
            let image =
                ProgramImage::load(own.path.as_ref(), &SearchPaths::from_environment()).ok()?;
            (image.program.build_id == own.build_id).then_some(image)
        };
        self.image.get_or_init(read).as_ref()
    }

    /// Its pages with a phase's function, and the function's bytes in each: as it was in the recorded build, or, in
    /// another one, by name.
    fn entry_of(&self, phase: &Phase) -> Vec<(u32, Range<u32>)> {
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

    /// Is the module of this file name this build of it?
    fn has_build(&self, file_name: &str, build_id: &str) -> bool {
        let mut modules = self.recording.tables.modules.iter().map(module_name);
        modules.any(|module| module.file_name == file_name && module.build_id == build_id)
    }

    fn executable(&self) -> ModuleName<'_> {
        ModuleName {
            build_id: &self.program.build_id,
            file_name: &self.program.executable,
        }
    }

    fn rank(&self) -> Option<u32> {
        self.recording.metadata.rank
    }

    /// Threads of a team by number, with their CPUs.
    fn members(&self, team: &str) -> Vec<(ThreadIndex, CpuId)> {
        let members = self.threads.iter().filter(|(name, ..)| *name == team);
        let mut members: Vec<_> = members
            .map(|&(_, index, thread, cpu)| (index, (thread, cpu)))
            .collect();
        members.sort_by_key(|&(index, _)| index);
        members.dedup_by_key(|&mut (index, _)| index);
        members.into_iter().map(|(_, member)| member).collect()
    }

    /// Threads of the plan's first team that go to another node where `places` change from one to another, and
    /// the node's position; none: the team has another size.
    fn moved(&self, plan: &Plan, places: [&[u32]; 2]) -> Option<Vec<(ThreadIndex, u16)>> {
        let members = self.members(&plan.teams.first()?.name);
        if members.len() != places[1].len() {
            return None;
        }
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

    fn translate(&self, plan: &Plan, places: &[u32]) -> Result<Compact, nearpage_plan::Error> {
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
        let page_bytes = self.machine.page_bytes as u32;
        let target = Target {
            machine: self.machine,
            teams,
            threads: self.threads.iter().map(|&(.., cpu)| cpu).collect(),
            pinning: Pinning::None,
            mechanism: Mechanism::Bind,
            page_bytes,
            huge_page_bytes: page_bytes,
            mappings_max: u32::MAX,
            touch_pages_max: u64::MAX,
            touch_group: 1,
            has_copies: true,
            later: Later::AsPlanned,
            summary: false,
        };
        translate(
            std::slice::from_ref(plan),
            &[],
            &target,
            self.image().map_or(&[], std::slice::from_ref),
        )
    }

    /// Hands out the objects that rules take, in order of birth.
    fn place_objects(&self, compact: &Compact, mut each: impl FnMut(&Object, &Evaluated)) {
        let tables = &self.recording.tables;
        let page_bytes = self.machine.page_bytes;
        let mut rules = compact.process(self.executable(), self.rank(), page_bytes);
        let frames: Vec<Vec<_>> = tables
            .call_sites
            .iter()
            .map(|site| {
                let physical = site.frames.iter().filter(|frame| !frame.inlined);
                physical
                    .map(|frame| {
                        let module = tables.modules.get(frame.module?.0 as usize)?;
                        Some((module_name(module), frame.offset))
                    })
                    .filter(|frame| {
                        !frame.is_some_and(|(name, _)| is_runtime_module(name.file_name.as_bytes()))
                    })
                    .collect()
            })
            .collect();
        let mut objects: Vec<&Object> = tables
            .objects
            .iter()
            .filter(|object| object.pid == self.pid)
            .collect();
        // The heap as a whole is what is left of it.
        objects.sort_by_key(|object| (object.is_brk_heap(), object.born_ns));
        for object in objects {
            let allocation = || {
                let site = object.call_site.map(|site| &frames[site.0 as usize]);
                let thread = object
                    .thread
                    .and_then(|thread| tables.threads.get(thread.0 as usize));
                Allocation {
                    frames: site.map_or(&[], Vec::as_slice),
                    thread: thread.map_or(0, |thread| thread.order),
                }
            };
            let origin = match object.kind {
                ObjectKind::Heap => Origin::Heap(allocation()),
                ObjectKind::Mapping => Origin::Mapping(allocation()),
                ObjectKind::Static => {
                    let module = object
                        .module
                        .and_then(|module| tables.modules.get(module.0 as usize));
                    let Some(module) = module else { continue };
                    Origin::Static {
                        module: module_name(module),
                        offset: object.module_offset,
                    }
                }
                _ if object.is_brk_heap() => Origin::BrkHeap,
                _ => continue,
            };
            if let Some(evaluated) = rules.place(&origin, object.address, object.size_bytes) {
                each(object, &evaluated);
            }
        }
    }
}

fn module_name(module: &Module) -> ModuleName<'_> {
    ModuleName {
        build_id: &module.build_id,
        file_name: module.file_name(),
    }
}
