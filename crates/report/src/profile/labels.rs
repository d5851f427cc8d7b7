//! Labels of an access: object, nodes, level and function.

use nearpage_attribution::{FoundObject, Names, ObjectIndex, Search};
use nearpage_machine::NodeId;
use nearpage_recording::{
    Access, AccessKind, Frame, Level, ModuleId, ObjectKind, Recording, Symbols, Thread,
};
use rustc_hash::FxHashMap;

use crate::printable;

/// An access with its labels.
pub(super) struct Labelled<'a> {
    pub access: Access,
    /// `None` if the recording does not have the thread.
    pub thread: Option<&'a Thread>,
    pub object: &'a str,
    pub object_kind: &'static str,
    /// First address of the object.
    pub object_address: Option<u64>,
    /// Node of the CPU.
    pub cpu_node: Option<NodeId>,
    /// Node of the memory, from the page or the level, or the only node of the machine.
    pub node: Option<NodeId>,
    /// Number of `code`.
    pub code_number: u32,
    pub code: &'a Code,
}

#[derive(Clone, Debug)]
pub(super) struct Code {
    pub module: Option<ModuleId>,
    /// File name of the module, or `[unknown]`.
    pub module_name: String,
    /// Virtual address in the module's file; without a module, the address in memory.
    pub offset: u64,
    /// Functions from the innermost outward; never empty.
    pub functions: Vec<Function>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Function {
    /// Name of the function; if unknown, module and offset.
    pub name: String,
    pub file: String,
    /// 0: not known.
    pub line: u32,
}

/// Labels for all accesses of a recording.
pub(super) struct Labels<'a> {
    recording: &'a Recording,
    pub index: ObjectIndex,
    names: Vec<String>,
}

/// Instructions seen so far.
pub(super) struct CodeTable {
    symbols: Symbols,
    /// Number of the instruction by process and address, with the range of time in which the number is valid.
    numbers: FxHashMap<(u32, u64), (u32, u64, u64)>,
    by_place: FxHashMap<(Option<ModuleId>, u64), u32>,
    all: Vec<Code>,
}

impl<'a> Labels<'a> {
    pub fn new(recording: &'a Recording) -> Self {
        let index = ObjectIndex::new(&recording.tables.objects);
        let groups = index.groups();
        let names = Names::new(&recording.tables, &groups);
        let names = groups
            .iter()
            .map(|group| printable(&names.of(group)))
            .collect();
        Self {
            recording,
            index,
            names,
        }
    }

    /// Calls `each` with the labelled access.
    pub fn with<T>(
        &self,
        codes: &mut CodeTable,
        search: &mut Search<'_>,
        access: Access,
        each: impl FnOnce(&Labelled<'_>) -> T,
    ) -> T {
        let tables = &self.recording.tables;
        let thread = tables.threads.get(access.thread.0 as usize);
        let pid = thread.map_or(0, |thread| thread.pid);
        let found = search.find(pid, access.time_ns, access.address);
        let (object, object_kind) = match found {
            Some(FoundObject { group, kind, .. }) => (self.names[group].as_str(), kind_name(kind)),
            None => ("unknown", "unknown"),
        };
        let cpu_node = self.recording.machine.node_of(access.cpu);
        let local = (access.level == Level::LocalMemory)
            .then_some(cpu_node)
            .flatten();
        let only = match self.recording.machine.nodes.as_slice() {
            [node] => Some(node.id),
            _ => None,
        };
        let code_number = codes.number(self.recording, pid, access.time_ns, access.instruction);
        each(&Labelled {
            access,
            thread,
            object,
            object_kind,
            object_address: found.map(|found| tables.objects[found.object.0 as usize].address),
            cpu_node,
            node: access.page_node.or(local).or(only),
            code_number,
            code: &codes.all[code_number as usize],
        })
    }
}

impl CodeTable {
    pub fn new(recording: &Recording) -> Self {
        Self {
            symbols: recording.symbols(),
            numbers: FxHashMap::default(),
            by_place: FxHashMap::default(),
            all: Vec::new(),
        }
    }

    fn number(&mut self, recording: &Recording, pid: u32, time_ns: u64, address: u64) -> u32 {
        if let Some((number, born_ns, died_ns)) = self.numbers.get(&(pid, address))
            && (*born_ns..*died_ns).contains(&time_ns)
        {
            return *number;
        }
        let mappings = &recording.tables.mappings;
        let first = mappings.partition_point(|mapping| mapping.pid < pid);
        let mut of_process = mappings[first..]
            .iter()
            .take_while(|mapping| mapping.pid == pid);
        let here = of_process.find(|mapping| mapping.offset(pid, time_ns, address).is_some());
        let (place, born_ns, died_ns) = match here {
            Some(mapping) => (
                (Some(mapping.module), address.wrapping_sub(mapping.bias)),
                mapping.born_ns,
                mapping.died_ns,
            ),
            None => ((None, address), time_ns, time_ns.saturating_add(1)),
        };
        let number = match self.by_place.get(&place) {
            Some(number) => *number,
            None => {
                let number = self.all.len() as u32;
                let code = self.look_up(recording, place);
                self.all.push(code);
                self.by_place.insert(place, number);
                number
            }
        };
        self.numbers
            .insert((pid, address), (number, born_ns, died_ns));
        number
    }

    fn look_up(
        &mut self,
        recording: &Recording,
        (module, offset): (Option<ModuleId>, u64),
    ) -> Code {
        let path = module.and_then(|module| recording.tables.modules.get(module.0 as usize));
        let module_name = path.map_or("[unknown]", nearpage_recording::Module::file_name);
        let frames = module.map(|module| self.symbols.instruction(module, offset));
        let frames = frames.unwrap_or_default();
        let mut functions: Vec<Function> = frames
            .iter()
            .map(|frame| function(frame, module_name))
            .collect();
        if functions.is_empty() {
            functions.push(Function {
                name: format!("{module_name}+{offset:#x}"),
                file: String::new(),
                line: 0,
            });
        }
        Code {
            module,
            module_name: printable(module_name),
            offset,
            functions,
        }
    }
}

fn function(frame: &Frame, module: &str) -> Function {
    Function {
        name: if frame.function.is_empty() {
            format!("{module}+{:#x}", frame.offset)
        } else {
            printable(&frame.function)
        },
        file: printable(&frame.file),
        line: frame.line,
    }
}

/// Words such as `node 0` or `node unknown`.
pub(super) fn node_name(node: Option<NodeId>) -> String {
    node.map_or_else(|| "node unknown".to_owned(), |node| format!("node {node}"))
}

pub(super) fn access_name(kind: AccessKind) -> &'static str {
    match kind {
        AccessKind::Load => "load",
        AccessKind::Store => "store",
        AccessKind::Fetch => "fetch",
    }
}

/// Words for the cache or memory that served an access.
pub(super) fn level_name(level: Level) -> &'static str {
    match level {
        Level::Unknown => "level unknown",
        Level::L1 => "L1",
        Level::L2 => "L2",
        Level::L3 => "L3",
        Level::LineFillBuffer => "line fill buffer",
        Level::LocalMemory => "local memory",
        Level::RemoteMemory => "remote memory",
        Level::RemoteCache => "remote cache",
    }
}

/// Words for the cache or memory that served an access; empty if unknown.
pub(super) fn known_level_name(level: Level) -> &'static str {
    match level {
        Level::Unknown => "",
        level => level_name(level),
    }
}

fn kind_name(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::Heap => "heap",
        ObjectKind::Static => "static",
        ObjectKind::Mapping => "mapping",
        ObjectKind::Stack => "stack",
        ObjectKind::Tls => "tls",
        ObjectKind::Code => "code",
        ObjectKind::HeapArea => "heap-area",
    }
}
