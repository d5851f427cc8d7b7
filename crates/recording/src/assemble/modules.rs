//! Modules and where they were mapped.

use nearpage_files::readable;
use rustc_hash::FxHashMap;

use super::address_space::{AddressSpaces, Region};
use super::file_name;
use crate::convert::ModulePaths;
use crate::elf::{ElfFile, Symbol, demangle};
use crate::symbols::open_module;
use crate::{Module, ModuleId, ModuleMapping};

/// All modules with their mappings, and their files if these are unchanged since the recording.
#[derive(Debug)]
pub(super) struct Modules {
    modules: Vec<Module>,
    files: Vec<Option<ElfFile>>,
    mappings: Vec<ModuleMapping>,
    /// Range of each process in `mappings`.
    by_process: FxHashMap<u32, std::ops::Range<usize>>,
    notes: Vec<String>,
}

impl Modules {
    pub(super) fn new(spaces: &AddressSpaces, paths: &ModulePaths, page_bytes: u64) -> Self {
        let mut found = Self {
            modules: vec![],
            files: vec![],
            mappings: vec![],
            by_process: FxHashMap::default(),
            notes: vec![],
        };
        let mut numbers: FxHashMap<(String, String), ModuleId> = FxHashMap::default();
        let named =
            |region: &&Region| region.executable() && (region.file() || &*region.path == "[vdso]");
        let mut regions: Vec<&Region> = spaces.regions.iter().filter(named).collect();
        regions.sort_by_key(|region| (region.born_ns, region.pid, region.start));
        for region in regions {
            let key = (region.path.to_string(), region.build_id.to_string());
            let module = *numbers
                .entry(key)
                .or_insert_with_key(|key| found.add(key, paths));
            let file = found.files[module.0 as usize].as_ref();
            let bias =
                file.and_then(|file| file.bias(region.start, region.file_offset, true, page_bytes));
            found.mappings.push(ModuleMapping {
                pid: region.pid,
                address: region.start,
                size_bytes: region.end - region.start,
                born_ns: region.born_ns,
                died_ns: region.died_ns,
                module,
                bias: bias.unwrap_or(region.start.wrapping_sub(region.file_offset)),
            });
        }
        found
            .mappings
            .sort_by_key(|mapping| (mapping.pid, mapping.address, mapping.born_ns));
        found.mappings.dedup_by(|later, earlier| {
            let continued = ModuleMapping {
                born_ns: earlier.born_ns,
                died_ns: earlier.died_ns,
                ..*later
            } == *earlier
                && later.born_ns == earlier.died_ns;
            if continued {
                earlier.died_ns = later.died_ns;
            }
            continued
        });
        for (position, mapping) in found.mappings.iter().enumerate() {
            found
                .by_process
                .entry(mapping.pid)
                .or_insert(position..position)
                .end = position + 1;
        }
        found
    }

    fn add(&mut self, (path, build_id): &(String, String), paths: &ModulePaths) -> ModuleId {
        let mut module = Module {
            path: path.clone(),
            build_id: build_id.clone(),
        };
        let file = if path.starts_with('[') {
            None
        } else {
            open_module(&module, paths)
                .inspect_err(|cause| {
                    let path = readable(path);
                    // Most causes begin with a file name, which can differ from `path`.
                    let of = match cause.starts_with(&format!("{path}: ")) {
                        true => String::new(),
                        false => format!("{path}: "),
                    };
                    self.notes.push(format!("no static objects of {of}{cause}"));
                })
                .ok()
        };
        if let (Some(file), true) = (&file, build_id.is_empty()) {
            module.build_id = file.build_id();
        }
        self.modules.push(module);
        self.files.push(file);
        ModuleId(self.modules.len() as u32 - 1)
    }

    /// Resolves an address of process `pid` at `time_ns` to a module and the virtual address in the module's file.
    pub(super) fn resolve(&self, pid: u32, time_ns: u64, address: u64) -> Option<(ModuleId, u64)> {
        let mappings = self.of_process(pid);
        let after = mappings.partition_point(|mapping| mapping.address <= address);
        let here = |mapping: &&ModuleMapping| address - mapping.address < mapping.size_bytes;
        let candidates = || mappings[..after].iter().rev().filter(here);
        let mapping = candidates().find(|mapping| mapping.offset(pid, time_ns, address).is_some());
        let mapping = mapping.or_else(|| candidates().next())?;
        Some((mapping.module, address.wrapping_sub(mapping.bias)))
    }

    /// Mappings of process `pid`, by address.
    pub(super) fn of_process(&self, pid: u32) -> &[ModuleMapping] {
        self.by_process
            .get(&pid)
            .map_or(&[], |range| &self.mappings[range.clone()])
    }

    pub(super) fn mappings(&self) -> &[ModuleMapping] {
        &self.mappings
    }

    pub(super) fn name(&self, module: ModuleId) -> &str {
        file_name(&self.modules[module.0 as usize].path)
    }

    pub(super) fn file(&self, module: ModuleId) -> Option<&ElfFile> {
        self.files[module.0 as usize].as_ref()
    }

    /// Name of the function at `offset`; `MODULE+0xOFFSET` where the symbol table has none.
    pub(super) fn function(&self, module: ModuleId, offset: u64) -> String {
        let function = self.function_around(module, offset);
        function.map_or_else(
            || format!("{}+{offset:#x}", self.name(module)),
            |function| demangle(&function.name),
        )
    }

    /// Name of the function that begins at `offset`.
    pub(super) fn named_function(&self, module: ModuleId, offset: u64) -> Option<String> {
        let function = self.function_around(module, offset)?;
        (function.address == offset).then(|| demangle(&function.name))
    }

    fn function_around(&self, module: ModuleId, offset: u64) -> Option<Symbol> {
        let mut functions = self.file(module)?.functions();
        let after = functions.partition_point(|function| function.address <= offset);
        functions.truncate(after);
        let function = functions.pop()?;
        (offset - function.address < function.size_bytes.max(1)).then_some(function)
    }

    pub(super) fn notes(&self) -> &[String] {
        &self.notes
    }

    pub(super) fn into_tables(self) -> (Vec<Module>, Vec<ModuleMapping>) {
        (self.modules, self.mappings)
    }
}
