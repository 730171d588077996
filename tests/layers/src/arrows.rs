//! Which file uses what of which other file.

use std::collections::BTreeMap;

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemUse, Macro, Stmt, Visibility};

use crate::names::{Origin, Scope, Target, imports_of};
use crate::source::{Crate, is_for_tests};

/// One file uses what another one defines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrow {
    /// The number of the file that uses.
    pub from: usize,
    /// The number of the file that defines.
    pub to: usize,
    /// Every path that does so, with its first line.
    pub places: Vec<Place>,
}

/// A path as it is written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Counted from 1.
    pub line: usize,
    /// Its names, without arguments.
    pub path: String,
    /// Stands in `pub(in …)`, which says who may see a thing and needs nothing of it.
    pub visibility: bool,
}

impl Arrow {
    /// The first place that needs the other file, or the first one of all.
    pub fn first(&self) -> &Place {
        self.places.iter().find(|place| !place.visibility).unwrap_or(&self.places[0])
    }

    /// Whether the file needs the other one; `pub(in …)` alone does not.
    pub fn needs(&self) -> bool {
        self.places.iter().any(|place| !place.visibility)
    }
}

impl Crate {
    /// All arrows, by the numbers of their files.
    pub fn arrows(&self) -> Vec<Arrow> {
        let mut found = BTreeMap::new();
        for (index, module) in self.modules.iter().enumerate().filter(|(_, module)| !module.test) {
            let mut collector =
                Collector { krate: self, module: index, blocks: Vec::new(), found: &mut found };
            module.items.iter().for_each(|item| collector.visit_item(item));
        }
        found
            .into_iter()
            .map(|((from, to), places)| Arrow { from, to, places: places.into_places() })
            .collect()
    }
}

/// The lines of the paths from one file to another.
#[derive(Default)]
struct Places {
    /// By path and whether it is one of visibility.
    written: BTreeMap<(String, bool), usize>,
    /// Those that begin with a name that is already imported: told only if the import is not.
    imported: BTreeMap<(String, bool), usize>,
}

impl Places {
    fn into_places(self) -> Vec<Place> {
        let chosen = if self.written.is_empty() { self.imported } else { self.written };
        let place = |((path, visibility), line)| Place { line, path, visibility };
        let mut places: Vec<_> = chosen.into_iter().map(place).collect();
        places.sort();
        places
    }
}

/// Where a path stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// In code. A path that ends at a module needs nothing of it: what stands behind it does.
    Code,
    /// The same in the body of a `macro_rules!`, whose relative paths begin wherever it is called.
    MacroBody,
    /// The name of a macro that is called.
    MacroName,
    /// Imported for this module alone.
    Import,
    /// Passed on to others.
    Reexport,
    /// In `pub(in …)`.
    Visibility,
}

struct Collector<'a> {
    krate: &'a Crate,
    module: usize,
    blocks: Vec<Scope>,
    found: &'a mut BTreeMap<(usize, usize), Places>,
}

impl Collector<'_> {
    fn add(&mut self, path: &[String], line: usize, role: Role) {
        let from = Origin { module: self.module, blocks: &self.blocks };
        let relative = matches!(path[0].as_str(), "crate" | "self" | "super");
        let assumed = role != Role::MacroBody || path[0] == "crate";
        let targets = self.krate.resolve(from, path, assumed);
        let imported = !relative
            && !matches!(role, Role::Import | Role::Reexport)
            && !self
                .krate
                .resolve(from, &path[..1], false)
                .iter()
                .any(|target| matches!(target, Target::Module(_)));
        for target in &targets {
            match *target {
                Target::Item(file) => self.add_file(file, path, line, role, imported),
                Target::Module(module) if matches!(role, Role::Reexport | Role::Visibility) => {
                    self.add_file(self.krate.modules[module].file, path, line, role, imported);
                }
                Target::Module(_) | Target::Foreign => {}
            }
        }
        if role == Role::MacroName && path.len() == 1 && targets == [Target::Foreign] {
            // Such names are also in scope below their definition, without a path.
            if let Some(&[file]) = self.krate.macros.get(&path[0]).map(Vec::as_slice) {
                self.add_file(file, path, line, role, false);
            }
        }
    }

    fn add_file(&mut self, to: usize, path: &[String], line: usize, role: Role, imported: bool) {
        let from = self.krate.modules[self.module].file;
        if from != to {
            let places = self.found.entry((from, to)).or_default();
            let written = if imported { &mut places.imported } else { &mut places.written };
            let first = written.entry((path.join("::"), role == Role::Visibility)).or_insert(line);
            *first = line.min(*first);
        }
    }

    fn add_glob(&mut self, path: &[String], line: usize, exported: bool) {
        let from = Origin { module: self.module, blocks: &self.blocks };
        let mut written = path.to_vec();
        written.push("*".to_owned());
        for target in self.krate.resolve(from, path, true) {
            let files = match target {
                Target::Item(file) => vec![file],
                Target::Module(module) => self.krate.behind_glob(module, exported),
                Target::Foreign => Vec::new(),
            };
            for file in files {
                self.add_file(file, &written, line, Role::Import, false);
            }
        }
    }

    fn add_path(&mut self, path: &syn::Path, role: Role) {
        let mut names: Vec<_> = path.leading_colon.iter().map(|_| String::new()).collect();
        names.extend(path.segments.iter().map(|segment| segment.ident.to_string()));
        self.add(&names, line_of(path.segments[0].ident.span()), role);
    }

    /// Every path in the tokens of a macro; `prefix` is what stands before a group of imports.
    fn add_tokens(&mut self, tokens: TokenStream, prefix: &[String], role: Role) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.add_tokens(group.stream(), &[], role),
                TokenTree::Ident(_) if begins_path(&tokens, at, !prefix.is_empty()) => {
                    at = self.add_token_path(&tokens, at, prefix, role);
                    continue;
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// Adds the path that begins at `start`, and returns where it ends.
    fn add_token_path(&mut self, tokens: &[TokenTree], start: usize, prefix: &[String], role: Role) -> usize {
        let mut path = prefix.to_vec();
        let mut at = start;
        let line = line_of(tokens[start].span());
        while let Some(TokenTree::Ident(name)) = tokens.get(at) {
            if name != "self" || path.is_empty() {
                path.push(name.to_string());
            }
            if !is_colons(tokens, at + 1) {
                let called = is_punct(tokens.get(at + 1), '!') && !is_punct(tokens.get(at + 2), '=');
                self.add(&path, line, if called { Role::MacroName } else { role });
                return at + 1;
            }
            at += 3;
        }
        match tokens.get(at) {
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                self.add_tokens(group.stream(), &path, role);
                at + 1
            }
            Some(TokenTree::Punct(star)) if star.as_char() == '*' => {
                self.add_glob(&path, line, false);
                at + 1
            }
            _ => {
                self.add(&path, line, role);
                at
            }
        }
    }
}

/// Whether the name at `at` can be the first one of a path: it is no field, method, lifetime, variable of a
/// macro or part of a path that began earlier, nor, among imports, a new name behind `as`.
fn begins_path(tokens: &[TokenTree], at: usize, imports: bool) -> bool {
    let before = |distance: usize| at.checked_sub(distance).map(|index| &tokens[index]);
    match before(1) {
        Some(TokenTree::Punct(punct)) => match punct.as_char() {
            '.' => is_punct(before(2), '.'),
            ':' => !is_punct(before(2), ':'),
            '$' => matches!(&tokens[at], TokenTree::Ident(name) if name == "crate"),
            '\'' => false,
            _ => true,
        },
        Some(TokenTree::Ident(keyword)) if imports => keyword != "as" && tokens[at].to_string() != "as",
        _ => true,
    }
}

fn is_punct(token: Option<&TokenTree>, expected: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == expected)
}

fn is_colons(tokens: &[TokenTree], at: usize) -> bool {
    is_punct(tokens.get(at), ':') && is_punct(tokens.get(at + 1), ':')
}

fn line_of(span: Span) -> usize {
    span.start().line
}

/// The visits of syntax that may carry `#[cfg(test)]`.
macro_rules! skip_tests {
    ($($visit:ident: $syntax:ty;)+) => {
        $(fn $visit(&mut self, syntax: &'ast $syntax) {
            if !is_for_tests(&syntax.attrs) {
                visit::$visit(self, syntax);
            }
        })+
    };
}

impl<'ast> Visit<'ast> for Collector<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Const(item) => &item.attrs,
            Item::Enum(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::ForeignMod(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Macro(item) => &item.attrs,
            Item::Mod(item) => &item.attrs,
            Item::Static(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Trait(item) => &item.attrs,
            Item::Type(item) => &item.attrs,
            Item::Union(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    skip_tests! {
        visit_impl_item_const: syn::ImplItemConst;
        visit_impl_item_fn: syn::ImplItemFn;
        visit_impl_item_macro: syn::ImplItemMacro;
        visit_impl_item_type: syn::ImplItemType;
        visit_trait_item_const: syn::TraitItemConst;
        visit_trait_item_fn: syn::TraitItemFn;
        visit_trait_item_type: syn::TraitItemType;
        visit_field: syn::Field;
        visit_variant: syn::Variant;
        visit_field_value: syn::FieldValue;
        visit_field_pat: syn::FieldPat;
        visit_arm: syn::Arm;
        visit_local: syn::Local;
        visit_stmt_macro: syn::StmtMacro;
        visit_expr_block: syn::ExprBlock;
        visit_expr_macro: syn::ExprMacro;
        visit_expr_call: syn::ExprCall;
        visit_expr_if: syn::ExprIf;
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        let items = block.stmts.iter().filter_map(|statement| match statement {
            Stmt::Item(item) => Some(item),
            _ => None,
        });
        self.blocks.push(Scope::of(items));
        visit::visit_block(self, block);
        self.blocks.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        for import in imports_of(item) {
            match import.name {
                Some(_) if import.exported => self.add(&import.path, import.line, Role::Reexport),
                Some(_) => self.add(&import.path, import.line, Role::Import),
                None => self.add_glob(&import.path, import.line, import.exported),
            }
        }
        self.visit_visibility(&item.vis);
    }

    fn visit_item_macro(&mut self, item: &'ast syn::ItemMacro) {
        if item.ident.is_some() {
            self.add_tokens(item.mac.tokens.clone(), &[], Role::MacroBody);
        } else {
            self.visit_macro(&item.mac);
        }
    }

    fn visit_macro(&mut self, called: &'ast Macro) {
        self.add_path(&called.path, Role::MacroName);
        self.add_tokens(called.tokens.clone(), &[], Role::Code);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.add_path(path, Role::Code);
        visit::visit_path(self, path);
    }

    // `<T>::name` has no path of its own, unlike `<T as Trait>::name`.
    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        match &path.qself {
            Some(own) if own.position == 0 => {
                self.visit_type(&own.ty);
                path.path.segments.iter().for_each(|segment| self.visit_path_segment(segment));
            }
            _ => visit::visit_expr_path(self, path),
        }
    }

    fn visit_type_path(&mut self, path: &'ast syn::TypePath) {
        match &path.qself {
            Some(own) if own.position == 0 => {
                self.visit_type(&own.ty);
                path.path.segments.iter().for_each(|segment| self.visit_path_segment(segment));
            }
            _ => visit::visit_type_path(self, path),
        }
    }

    // A constant that is matched looks like a new name.
    fn visit_pat_ident(&mut self, pattern: &'ast syn::PatIdent) {
        let name = pattern.ident.to_string();
        if name.starts_with(char::is_uppercase) {
            self.add(&[name], line_of(pattern.ident.span()), Role::Code);
        }
        visit::visit_pat_ident(self, pattern);
    }

    fn visit_visibility(&mut self, visibility: &'ast Visibility) {
        if let Visibility::Restricted(restricted) = visibility
            && restricted.in_token.is_some()
        {
            self.add_path(&restricted.path, Role::Visibility);
        }
    }

    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}
