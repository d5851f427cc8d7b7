//! Dictionary of a message: entries that samples of all profiles refer to by number.

use std::hash::Hash;

use nearpage_files::readable;
use nearpage_recording::{Module, ModuleId};
use opentelemetry_proto::tonic::common::v1::AnyValue;
use opentelemetry_proto::tonic::profiles::v1development::{
    Function, KeyValueAndUnit, Line, Link, Location, Mapping, ProfilesDictionary, Stack, ValueType,
};
use rustc_hash::FxHashMap;

use super::text;
use crate::profile::labels::Code;

/// Numbered entries, from 1; entry 0 is the empty entry.
struct Table<K, V> {
    entries: Vec<V>,
    numbers: FxHashMap<K, i32>,
}

impl<K: Eq + Hash, V: Default> Table<K, V> {
    fn new() -> Self {
        Self {
            entries: vec![V::default()],
            numbers: FxHashMap::default(),
        }
    }

    fn known(&self, key: &K) -> Option<i32> {
        self.numbers.get(key).copied()
    }

    fn add(&mut self, key: K, value: V) -> i32 {
        let number = self.entries.len() as i32;
        self.entries.push(value);
        self.numbers.insert(key, number);
        number
    }
}

impl Table<String, String> {
    fn number(&mut self, text: &str) -> i32 {
        if text.is_empty() {
            return 0;
        }
        let known = self.numbers.get(text).copied();
        known.unwrap_or_else(|| self.add(text.to_owned(), text.to_owned()))
    }
}

/// Tables of strings, attributes, code and stacks.
pub(super) struct Dictionary {
    strings: Table<String, String>,
    /// By name and text of the value.
    attributes: Table<(&'static str, String), KeyValueAndUnit>,
    mappings: Table<ModuleId, Mapping>,
    functions: Table<(i32, i32), Function>,
    /// Locations of instructions, by number of the instruction.
    locations: Table<u32, Location>,
    stacks: Table<u32, Stack>,
    /// Locations of names that stand for functions.
    named_locations: FxHashMap<i32, i32>,
    named_stacks: FxHashMap<Vec<i32>, i32>,
}

impl Dictionary {
    pub fn new() -> Self {
        Self {
            strings: Table::new(),
            attributes: Table::new(),
            mappings: Table::new(),
            functions: Table::new(),
            locations: Table::new(),
            stacks: Table::new(),
            named_locations: FxHashMap::default(),
            named_stacks: FxHashMap::default(),
        }
    }

    /// Type and unit of a profile's values.
    pub fn value_type(&mut self, (kind, unit): (&str, &str)) -> ValueType {
        ValueType {
            type_strindex: self.strings.number(kind),
            unit_strindex: self.strings.number(unit),
        }
    }

    pub fn attribute(&mut self, name: &'static str, value: AnyValue) -> i32 {
        let key = (name, format!("{value:?}"));
        if let Some(known) = self.attributes.known(&key) {
            return known;
        }
        let entry = KeyValueAndUnit {
            key_strindex: self.strings.number(name),
            value: Some(value),
            unit_strindex: 0,
        };
        self.attributes.add(key, entry)
    }

    fn mapping(&mut self, module: Option<ModuleId>, modules: &[Module]) -> i32 {
        let Some(module) = module else {
            return 0;
        };
        if let Some(known) = self.mappings.known(&module) {
            return known;
        }
        let recorded = &modules[module.0 as usize];
        let build_id = match recorded.build_id.as_str() {
            "" => Vec::new(),
            build_id => vec![self.attribute("process.executable.build_id.gnu", text(build_id))],
        };
        let mapping = Mapping {
            // Addresses of locations are addresses in the file, independent of its mapping.
            memory_start: 0,
            memory_limit: 0,
            filename_strindex: self.strings.number(&readable(&recorded.path)),
            attribute_indices: build_id,
            ..Mapping::default()
        };
        self.mappings.add(module, mapping)
    }

    fn function(&mut self, name: &str, file: &str) -> i32 {
        let name = self.strings.number(name);
        let file = self.strings.number(file);
        let known = self.functions.known(&(name, file));
        known.unwrap_or_else(|| {
            let entry = Function {
                name_strindex: name,
                filename_strindex: file,
                ..Function::default()
            };
            self.functions.add((name, file), entry)
        })
    }

    /// Stack of an instruction. It has one location, because accesses are recorded without callers.
    pub fn stack(&mut self, number: u32, code: &Code, modules: &[Module]) -> i32 {
        if let Some(known) = self.stacks.known(&number) {
            return known;
        }
        let lines = code.functions.iter().map(|function| Line {
            function_index: self.function(&function.name, &function.file),
            line: i64::from(function.line),
            column: 0,
        });
        let lines = lines.collect();
        let location = Location {
            mapping_index: self.mapping(code.module, modules),
            address: code.offset,
            lines,
            ..Location::default()
        };
        let location = self.locations.add(number, location);
        let stack = Stack {
            location_indices: vec![location],
        };
        self.stacks.add(number, stack)
    }

    /// Stack of names that stand for functions, innermost first. A dictionary has either such stacks or stacks of
    /// instructions.
    pub fn named_stack(&mut self, names: &[&str]) -> i32 {
        let locations: Vec<i32> = names.iter().map(|name| self.named_location(name)).collect();
        if let Some(known) = self.named_stacks.get(&locations) {
            return *known;
        }
        let number = self.stacks.entries.len() as i32;
        self.stacks.entries.push(Stack {
            location_indices: locations.clone(),
        });
        self.named_stacks.insert(locations, number);
        number
    }

    fn named_location(&mut self, name: &str) -> i32 {
        let function = self.function(name, "");
        if let Some(known) = self.named_locations.get(&function) {
            return *known;
        }
        let number = self.locations.entries.len() as i32;
        self.locations.entries.push(Location {
            lines: vec![Line {
                function_index: function,
                ..Line::default()
            }],
            ..Location::default()
        });
        self.named_locations.insert(function, number);
        number
    }

    pub fn finish(self) -> ProfilesDictionary {
        ProfilesDictionary {
            mapping_table: self.mappings.entries,
            location_table: self.locations.entries,
            function_table: self.functions.entries,
            link_table: vec![Link::default()],
            string_table: self.strings.entries,
            attribute_table: self.attributes.entries,
            stack_table: self.stacks.entries,
        }
    }
}
