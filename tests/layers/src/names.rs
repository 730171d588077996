//! What is in scope where, and what a path leads to.

use std::collections::{HashMap, HashSet};

use syn::{Item, UseTree, Visibility};

use crate::source::{Crate, Module, is_for_tests};

/// The names that a module or a block brings into scope.
#[derive(Default)]
pub(crate) struct Scope {
    /// Modules by name; several where `cfg` chooses.
    pub(crate) children: HashMap<String, Vec<usize>>,
    defined: HashSet<String>,
    imports: Vec<Import>,
    /// Whether anything but modules and imports stands here.
    defines: bool,
}

/// One name, or all names of a module, as a `use` brings them into scope.
pub(crate) struct Import {
    /// Of a glob: the module's path.
    pub(crate) path: Vec<String>,
    /// `None` for a glob.
    pub(crate) name: Option<String>,
    /// Whether others can see the name here.
    pub(crate) exported: bool,
    pub(crate) line: usize,
}

/// What a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Something that is defined in this file.
    Item(usize),
    Module(usize),
    /// Something of another crate, or of the language.
    Foreign,
}

/// Where a path begins to be looked up.
#[derive(Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub(crate) module: usize,
    /// Those of the blocks around it, outermost first.
    pub(crate) blocks: &'a [Scope],
}

/// The lookups under way: modules may import from each other in circles.
type Pending = Vec<(usize, String)>;

impl Scope {
    pub(crate) fn of<'a>(items: impl IntoIterator<Item = &'a Item>) -> Self {
        let mut scope = Self::default();
        for item in items {
            scope.add(item);
        }
        scope
    }

    fn add(&mut self, item: &Item) {
        let (attributes, name) = match item {
            Item::Const(item) => (&item.attrs, Some(&item.ident)),
            Item::Enum(item) => (&item.attrs, Some(&item.ident)),
            Item::Fn(item) => (&item.attrs, Some(&item.sig.ident)),
            Item::Macro(item) => (&item.attrs, item.ident.as_ref()),
            Item::Static(item) => (&item.attrs, Some(&item.ident)),
            Item::Struct(item) => (&item.attrs, Some(&item.ident)),
            Item::Trait(item) => (&item.attrs, Some(&item.ident)),
            Item::TraitAlias(item) => (&item.attrs, Some(&item.ident)),
            Item::Type(item) => (&item.attrs, Some(&item.ident)),
            Item::Union(item) => (&item.attrs, Some(&item.ident)),
            Item::Impl(item) => (&item.attrs, None),
            Item::ForeignMod(item) => return self.add_foreign(item),
            Item::Use(item) if !is_for_tests(&item.attrs) => return self.imports.extend(imports_of(item)),
            Item::ExternCrate(item) if !is_for_tests(&item.attrs) => return self.add_extern_crate(item),
            _ => return,
        };
        if !is_for_tests(attributes) {
            self.defines = true;
            self.defined.extend(name.map(ToString::to_string));
        }
    }

    fn add_foreign(&mut self, block: &syn::ItemForeignMod) {
        self.defines = true;
        for item in &block.items {
            let name = match item {
                syn::ForeignItem::Fn(item) => &item.sig.ident,
                syn::ForeignItem::Static(item) => &item.ident,
                syn::ForeignItem::Type(item) => &item.ident,
                _ => continue,
            };
            self.defined.insert(name.to_string());
        }
    }

    fn add_extern_crate(&mut self, item: &syn::ItemExternCrate) {
        let name = item.rename.as_ref().map_or(&item.ident, |(_, name)| name).to_string();
        let path = if item.ident == "self" {
            vec!["crate".into()]
        } else {
            vec![String::new(), item.ident.to_string()]
        };
        self.imports.push(Import { path, name: Some(name), exported: false, line: 0 });
    }
}

/// Every name that a `use` imports. A path from the crates' own root begins with an empty name.
pub(crate) fn imports_of(item: &syn::ItemUse) -> Vec<Import> {
    let mut imports = Vec::new();
    let mut path = if item.leading_colon.is_some() { vec![String::new()] } else { Vec::new() };
    flatten(&item.tree, &mut path, !matches!(item.vis, Visibility::Inherited), &mut imports);
    imports
}

fn flatten(tree: &UseTree, path: &mut Vec<String>, exported: bool, imports: &mut Vec<Import>) {
    let mut name_one = |path: &[String], ident: &syn::Ident, name: &syn::Ident| {
        let mut path = path.to_vec();
        if ident != "self" || path.is_empty() {
            path.push(ident.to_string());
        }
        let name = if name == "self" { path.last().cloned() } else { Some(name.to_string()) };
        imports.push(Import { path, name, exported, line: ident.span().start().line });
    };
    match tree {
        UseTree::Path(step) => {
            path.push(step.ident.to_string());
            flatten(&step.tree, path, exported, imports);
            path.pop();
        }
        UseTree::Name(last) => name_one(path, &last.ident, &last.ident),
        UseTree::Rename(last) => name_one(path, &last.ident, &last.rename),
        UseTree::Glob(star) => {
            let line = star.star_token.spans[0].start().line;
            imports.push(Import { path: path.clone(), name: None, exported, line });
        }
        UseTree::Group(group) => {
            for tree in &group.items {
                flatten(tree, path, exported, imports);
            }
        }
    }
}

impl Crate {
    /// What `path` leads to, at most one target of each kind and place. A name that a module of this crate
    /// seems to lack counts as defined in that module's file if it is `assumed`.
    pub(crate) fn resolve(&self, from: Origin<'_>, path: &[String], assumed: bool) -> Vec<Target> {
        self.walk(from, path, assumed, &mut Pending::new())
    }

    fn walk(&self, from: Origin<'_>, path: &[String], assumed: bool, pending: &mut Pending) -> Vec<Target> {
        let Some((first, mut rest)) = path.split_first() else { return vec![Target::Module(0)] };
        let mut targets = match first.as_str() {
            "" | "Self" => vec![Target::Foreign],
            "crate" => vec![Target::Module(0)],
            "self" => vec![Target::Module(from.module)],
            "super" => self.parent(from.module),
            name => self.first_name(from, name, pending),
        };
        if targets.is_empty() {
            return vec![Target::Foreign];
        }
        while let Some((name, after)) = rest.split_first() {
            rest = after;
            if targets.iter().any(|target| matches!(target, Target::Module(_))) {
                // A function may have the name of the module.
                targets.retain(|target| matches!(target, Target::Module(_)));
            }
            targets =
                targets.into_iter().flat_map(|target| self.step(target, name, assumed, pending)).collect();
            targets.dedup();
        }
        targets
    }

    fn parent(&self, module: usize) -> Vec<Target> {
        self.modules[module].parent.map(Target::Module).into_iter().collect()
    }

    /// The names of blocks hide those of the module.
    fn first_name(&self, from: Origin<'_>, name: &str, pending: &mut Pending) -> Vec<Target> {
        for (depth, block) in from.blocks.iter().enumerate().rev() {
            let outside = Origin { blocks: &from.blocks[..depth], ..from };
            let targets = self.in_scope(block, from.module, name, outside, pending);
            if !targets.is_empty() {
                return targets;
            }
        }
        self.lookup(from.module, name, pending)
    }

    fn step(&self, target: Target, name: &str, assumed: bool, pending: &mut Pending) -> Vec<Target> {
        let Target::Module(module) = target else { return vec![target] };
        match name {
            "self" => vec![target],
            "super" => self.parent(module),
            _ => {
                let found = self.lookup(module, name, pending);
                if found.is_empty() && assumed {
                    vec![Target::Item(self.modules[module].file)]
                } else {
                    found
                }
            }
        }
    }

    /// What `name` means in a module, re-exports followed; nothing if it is not known there.
    fn lookup(&self, module: usize, name: &str, pending: &mut Pending) -> Vec<Target> {
        let key = (module, name.to_owned());
        if pending.contains(&key) {
            return Vec::new();
        }
        pending.push(key);
        let outside = Origin { module, blocks: &[] };
        let mut targets = self.in_scope(&self.modules[module].scope, module, name, outside, pending);
        pending.pop();
        if targets.is_empty() && module == 0 {
            // Macros that are exported are at the root, wherever they are defined.
            targets.extend(self.macros.get(name).into_iter().flatten().map(|file| Target::Item(*file)));
        }
        targets
    }

    fn in_scope(
        &self,
        scope: &Scope,
        module: usize,
        name: &str,
        outside: Origin<'_>,
        pending: &mut Pending,
    ) -> Vec<Target> {
        let mut targets: Vec<_> =
            scope.children.get(name).into_iter().flatten().copied().map(Target::Module).collect();
        if scope.defined.contains(name) {
            targets.push(Target::Item(self.modules[module].file));
        }
        for import in scope.imports.iter().filter(|import| import.name.as_deref() == Some(name)) {
            targets.extend(self.walk(outside, &import.path, true, pending));
        }
        if targets.is_empty() {
            for glob in scope.imports.iter().filter(|import| import.name.is_none()) {
                for target in self.walk(outside, &glob.path, true, pending) {
                    if let Target::Module(other) = target {
                        targets.extend(self.lookup(other, name, pending));
                    }
                }
            }
        }
        targets.dedup();
        targets
    }

    /// The files behind a glob of `module`. Names that are only passed on count where they are used, unless
    /// the glob itself passes all of them on.
    pub(crate) fn behind_glob(&self, module: usize, exported: bool) -> Vec<usize> {
        let mut files = Vec::new();
        let mut seen = HashSet::new();
        self.add_files_behind(module, exported, &mut seen, &mut files);
        files
    }

    fn add_files_behind(
        &self,
        module: usize,
        exported: bool,
        seen: &mut HashSet<usize>,
        files: &mut Vec<usize>,
    ) {
        if !seen.insert(module) {
            return;
        }
        let Module { file, scope, .. } = &self.modules[module];
        files.extend(scope.defines.then_some(*file));
        for import in scope.imports.iter().filter(|import| exported && import.exported) {
            for target in self.resolve(Origin { module, blocks: &[] }, &import.path, true) {
                match (target, &import.name) {
                    (Target::Item(file), _) => files.push(file),
                    (Target::Module(other), Some(_)) => files.push(self.modules[other].file),
                    (Target::Module(other), None) => self.add_files_behind(other, exported, seen, files),
                    (Target::Foreign, _) => {}
                }
            }
        }
    }
}
