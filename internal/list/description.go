package list

import (
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Description is what a file says of lists. What the columns are, the catalogue says: see Resolve.
type Description struct {
	Title, About string

	file  string
	lists []*draft
}

// MaxDescription is how many bytes a description may have.
const MaxDescription = 1 << 20

// Mistakes are all that is wrong with a description, in the order of its lines. Each says where
// (FILE:LINE), what is wrong and what to write.
type Mistakes []string

func (m Mistakes) Error() string { return strings.Join(m, "\n") }

// word is a text of a description, and its line.
type word struct {
	text string
	line int
	null bool
}

// draft is a list as a description has it.
type draft struct {
	word              // its name
	one, title, about string
	table             Name
	tableLine         int
	tenant, key       word
	live              draftCondition
	fields            []draftField
	orders            []draftOrder
	filters           []draftFilter
	search            []word
}

type draftField struct {
	word
	column, as, min, max word
	about                string
	enum                 []word
	example              *word
}

type draftOrder struct {
	word
	by               word
	about            string
	descending, fold bool
}

type draftFilter struct {
	word
	about  string
	values []draftValue
}

type draftValue struct {
	word
	keep draftCondition
	few  bool
}

type draftCondition struct {
	Condition
	line int
}

//go:embed builtin.yaml
var builtInText []byte

// BuiltInDescription returns the description that the program carries: the two lists of the contract. It is
// always the same value.
func BuiltInDescription() *Description { return builtInDescription() }

var builtInDescription = sync.OnceValue(func() *Description {
	d, err := Parse("builtin.yaml", builtInText)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return d
})

// Scopes returns the scopes of the lists.
func (d *Description) Scopes() (scopes []string) {
	for _, l := range d.lists {
		scopes = append(scopes, (&List{Name: l.text}).Scope())
	}
	return scopes
}

// Tables returns the tables of the lists, each once, in the order of the lists.
func (d *Description) Tables() (tables []Name) {
	for _, l := range d.lists {
		if !slices.Contains(tables, l.table) {
			tables = append(tables, l.table)
		}
	}
	return tables
}

// mistakes collects what is wrong with a file.
type mistakes struct {
	file string
	all  []word
}

func (m *mistakes) add(line int, format string, args ...any) {
	m.all = append(m.all, word{text: fmt.Sprintf(format, args...), line: line})
}

// err returns Mistakes; nil = there are none.
func (m *mistakes) err() error {
	if len(m.all) == 0 {
		return nil
	}
	slices.SortStableFunc(m.all, func(a, b word) int { return a.line - b.line })
	var texts Mistakes
	for _, w := range m.all {
		texts = append(texts, fmt.Sprintf("%s:%d: %s", m.file, w.line, w.text))
	}
	return texts
}

// reader reads the tree of a description.
type reader struct{ mistakes }

// Parse reads a description. file is its name in errors, which are Mistakes.
func Parse(file string, text []byte) (*Description, error) {
	r := reader{mistakes{file: file}}
	if len(text) > MaxDescription {
		r.add(1, "the file has %d bytes: write at most %d", len(text), MaxDescription)
		return nil, r.err()
	}
	tree, err := parser.ParseBytes(text, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		line, says := 1, err.Error()
		var syntax *yaml.SyntaxError
		if errors.As(err, &syntax) {
			says = syntax.Message
			if syntax.Token != nil {
				line = syntax.Token.Position.Line
			}
		}
		r.add(line, "this is no YAML: %s", says)
		return nil, r.err()
	}
	d := &Description{file: file}
	switch {
	case len(tree.Docs) == 1:
		r.description(d, tree.Docs[0].Body)
	case len(tree.Docs) > 1:
		line := 1
		start := tree.Docs[1].Start
		if start != nil {
			line = start.Position.Line
		}
		r.add(line, "there is a second document: write one, without ---")
	default:
		r.add(1, "there are no lists: write `lists:` and a list below it")
	}
	err = r.err()
	if err != nil {
		return nil, err
	}
	return d, nil
}

func (r *reader) description(d *Description, n ast.Node) {
	if isEmpty(n) {
		r.add(1, "there are no lists: write `lists:` and a list below it")
		return
	}
	r.mapping(entry{word: word{line: 1}, value: n}, "a description", map[string]func(entry){
		"title": func(e entry) { d.Title = r.text(e).text },
		"about": func(e entry) { d.About = r.text(e).text },
		"lists": func(e entry) {
			for _, l := range r.entries(e, "`lists`") {
				d.lists = append(d.lists, r.list(l))
			}
		},
	})
	switch {
	case len(d.lists) == 0 && len(r.all) == 0:
		r.add(1, "there are no lists: write `lists:` and a list below it")
	case len(d.lists) > MaxLists:
		r.add(d.lists[MaxLists].line, "there are %d lists: write at most %d", len(d.lists), MaxLists)
	}
}

// The forms of names. They stand in paths, scopes, query strings and JSON.
var (
	listName      = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	fieldName     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)
	parameterName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,62}$`)
)

func (r *reader) list(e entry) *draft {
	l := &draft{word: e.word, tableLine: e.line, table: Name{"public", strings.ReplaceAll(e.text, "-", "_")}}
	if !listName.MatchString(e.text) {
		r.add(e.line, "a list cannot be named %q: write a small letter and at most 31 more, digits and -", e.text)
	}
	if e.text == "docs" || e.text == "none" {
		r.add(e.line, "a list cannot be named %s, which metrics call something else: write another name", e.text)
	}
	r.mapping(e, "a list", map[string]func(entry){
		"row":    func(e entry) { l.one = r.text(e).text },
		"title":  func(e entry) { l.title = r.text(e).text },
		"about":  func(e entry) { l.about = r.text(e).text },
		"table":  func(e entry) { l.table, l.tableLine = r.table(e), e.line },
		"tenant": func(e entry) { l.tenant = r.text(e) },
		"key":    func(e entry) { l.key = r.text(e) },
		"live":   func(e entry) { l.live = r.condition(e) },
		"search": func(e entry) { l.search = r.texts(e) },
		"fields": func(e entry) {
			for _, f := range r.entries(e, "`fields`") {
				l.fields = append(l.fields, r.field(f))
			}
		},
		"orders": func(e entry) {
			for _, o := range r.entries(e, "`orders`") {
				l.orders = append(l.orders, r.order(o))
			}
		},
		"filters": func(e entry) {
			for _, f := range r.entries(e, "`filters`") {
				l.filters = append(l.filters, r.filter(f))
			}
		},
	})
	if isMapping(e.value) {
		r.judge(l)
	}
	return l
}

// judge adds what a list lacks, and what it has too much of.
func (r *reader) judge(l *draft) {
	if l.key.line == 0 {
		r.add(l.line, "the list %s has no key: write `key:` and the column that tells its rows apart", l.text)
	}
	values := 0
	for _, f := range l.filters {
		values += len(f.values)
	}
	for _, part := range []struct {
		what     string
		has, max int
		missing  string
	}{
		{"fields", len(l.fields), MaxFields, "write `fields:` and the columns that clients see"},
		{"orders", len(l.orders), MaxOrders, "write `orders:` with at least one, such as `createdAt: {descending: true}`"},
		{"values of filters", values, MaxValues, ""},
		{"searched fields", len(l.search), MaxSearch, ""},
	} {
		switch {
		case part.has == 0 && part.missing != "":
			r.add(l.line, "the list %s has no %s: %s", l.text, part.what, part.missing)
		case part.has > part.max:
			r.add(l.line, "the list %s has %d %s: write at most %d", l.text, part.has, part.what, part.max)
		}
	}
}

// table reads the name of a table: schema.table, or the table alone. A name with a dot stands in quotes.
func (r *reader) table(e entry) Name {
	text := r.text(e).text
	n, ok := ParseName(text)
	if !ok && text != "" {
		r.add(e.line, `%q is no table: write schema.table, and "…" around a name with dots`, text)
	}
	return n
}

var tableName = regexp.MustCompile(`^(("(?:[^"\x00]|"")+"|[^".\x00]+)\.)?("(?:[^"\x00]|"")+"|[^".\x00]+)$`)

func unquote(name string) string {
	if !strings.HasPrefix(name, `"`) {
		return name
	}
	return strings.ReplaceAll(name[1:len(name)-1], `""`, `"`)
}

func (r *reader) field(e entry) draftField {
	f := draftField{word: e.word, column: word{text: snake(e.text), line: e.line}}
	if !fieldName.MatchString(e.text) {
		r.add(e.line, "a field cannot be named %q: write letters, digits and _, at most 63, and no digit first", e.text)
	}
	if isEmpty(e.value) {
		return f
	}
	r.mapping(e, "a field", map[string]func(entry){
		"column": func(e entry) { f.column = r.text(e) },
		"as":     func(e entry) { f.as = r.text(e) },
		"min":    func(e entry) { f.min = r.number(e) },
		"max":    func(e entry) { f.max = r.number(e) },
		"about":  func(e entry) { f.about = r.text(e).text },
		"enum":   func(e entry) { f.enum = r.texts(e) },
		"example": func(e entry) {
			w := r.scalar(e)
			f.example = &w
		},
	})
	return f
}

// snake returns the column of a field: foo_bar of fooBar.
func snake(name string) string {
	var b strings.Builder
	for i, c := range name {
		if c >= 'A' && c <= 'Z' {
			if i > 0 {
				b.WriteByte('_')
			}
			c += 'a' - 'A'
		}
		b.WriteRune(c)
	}
	return b.String()
}

func (r *reader) order(e entry) draftOrder {
	o := draftOrder{word: e.word, by: e.word}
	r.parameter(e.word, "an order")
	if isEmpty(e.value) {
		return o
	}
	r.mapping(e, "an order", map[string]func(entry){
		"by":         func(e entry) { o.by = r.text(e) },
		"about":      func(e entry) { o.about = r.text(e).text },
		"descending": func(e entry) { o.descending = r.flag(e) },
		"fold":       func(e entry) { o.fold = r.flag(e) },
	})
	return o
}

func (r *reader) filter(e entry) draftFilter {
	f := draftFilter{word: e.word}
	r.parameter(e.word, "a filter")
	if slices.Contains([]string{"search", "cursor", "limit", "sort"}, e.text) {
		r.add(e.line, "a filter cannot be named %s, which is a parameter of every list: write another name", e.text)
	}
	for _, v := range r.entries(e, "a filter") {
		switch v.text {
		case "about":
			f.about = r.text(v).text
			continue
		case "all":
			r.add(v.line, "the filter %s has the value all, which every filter has: leave it out", e.text)
			continue
		}
		f.values = append(f.values, r.value(v))
	}
	if len(f.values) == 0 {
		r.add(e.line, "the filter %s has no value: write a name and its condition", e.text)
	}
	return f
}

func (r *reader) value(e entry) draftValue {
	v := draftValue{word: e.word}
	r.parameter(e.word, "a value of a filter")
	if !isMapping(e.value) {
		v.keep = r.condition(e)
		return v
	}
	r.mapping(e, "a value of a filter", map[string]func(entry){
		"keep": func(e entry) { v.keep = r.condition(e) },
		"few":  func(e entry) { v.few = r.flag(e) },
	})
	if v.keep.line == 0 {
		r.add(e.line, "the value %s keeps nothing: write `keep:` and a condition", e.text)
	}
	return v
}

func (r *reader) parameter(name word, what string) {
	if !parameterName.MatchString(name.text) {
		r.add(name.line, "%s cannot be named %q: write a letter and at most 62 more, digits, _ and -", what, name.text)
	}
}

func (r *reader) condition(e entry) draftCondition {
	text := r.text(e)
	if text.text == "" {
		return draftCondition{line: e.line}
	}
	c, err := parseCondition(text.text)
	if err != nil {
		r.add(text.line, "%s: %s", e.text, err)
	}
	return draftCondition{c, text.line}
}

// entry is a member of a mapping.
type entry struct {
	word
	value ast.Node
}

func isEmpty(n ast.Node) bool {
	_, null := n.(*ast.NullNode)
	return n == nil || null
}

func isMapping(n ast.Node) bool {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return true
	}
	return false
}

// mapping reads a mapping that may have only the keys.
func (r *reader) mapping(e entry, what string, keys map[string]func(entry)) {
	for _, member := range r.entries(e, what) {
		read := keys[member.text]
		if read == nil {
			var known []string
			for key := range keys {
				known = append(known, key)
			}
			slices.Sort(known)
			r.add(member.line, "%s has no %q: write one of %s", what, member.text, strings.Join(known, ", "))
			continue
		}
		read(member)
	}
}

// entries returns the members of a mapping.
func (r *reader) entries(e entry, what string) (all []entry) {
	var values []*ast.MappingValueNode
	switch n := e.value.(type) {
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		r.add(e.line, "%s must be a mapping: write `name: value` below it", what)
	}
	lines := map[string]int{}
	for _, v := range values {
		key, ok := v.Key.(ast.ScalarNode)
		if !ok || v.Key.IsMergeKey() {
			r.add(v.GetToken().Position.Line, "this is no name: write it out, without anchors, tags and <<")
			continue
		}
		name := word{text: key.GetToken().Value, line: key.GetToken().Position.Line}
		first, twice := lines[name.text]
		if twice {
			r.add(name.line, "%q stands twice in %s, first in line %d: remove one", name.text, what, first)
			continue
		}
		lines[name.text] = name.line
		all = append(all, entry{name, v.Value})
	}
	return all
}

// scalar returns the text of a value as the file has it.
func (r *reader) scalar(e entry) word {
	w := word{line: e.line}
	switch n := e.value.(type) {
	case *ast.NullNode:
		w.null, w.line = true, n.GetToken().Position.Line
	case *ast.LiteralNode: // a text of several lines
		w.text = strings.TrimSuffix(n.Value.Value, "\n")
	case *ast.StringNode:
		w.text, w.line = n.Value, n.GetToken().Position.Line
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		w.text, w.line = n.GetToken().Value, n.GetToken().Position.Line
	case nil:
		w.null = true
	default:
		r.add(e.line, "%s must be a text: write it in one piece, without anchors and tags", e.text)
	}
	return w
}

// text returns a text that is not empty, or a mistake and an empty one.
func (r *reader) text(e entry) word {
	before := len(r.all)
	w := r.scalar(e)
	if strings.TrimSpace(w.text) == "" && len(r.all) == before {
		r.add(e.line, "%s is empty: write a value, or leave it out", e.text)
	}
	return w
}

// texts returns the texts of a sequence.
func (r *reader) texts(e entry) (all []word) {
	list, ok := e.value.(*ast.SequenceNode)
	if !ok || len(list.Values) == 0 {
		r.add(e.line, "%s must be a list: write [one, two]", e.text)
		return nil
	}
	for _, n := range list.Values {
		w := r.text(entry{e.word, n})
		if slices.ContainsFunc(all, func(other word) bool { return other.text == w.text }) && w.text != "" {
			r.add(w.line, "%s has %q twice: remove one", e.text, w.text)
		}
		all = append(all, w)
	}
	return all
}

func (r *reader) flag(e entry) bool {
	n, ok := e.value.(*ast.BoolNode)
	if !ok {
		r.add(e.line, "%s must be true or false", e.text)
		return false
	}
	return n.Value
}

func (r *reader) number(e entry) word {
	w := r.text(e)
	_, err := strconv.ParseFloat(w.text, 64)
	if err != nil || !jsonNumber.MatchString(w.text) {
		if w.text != "" {
			r.add(e.line, "%s is %q: write a number in digits", e.text, w.text)
		}
		return word{}
	}
	return w
}

var jsonNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?$`)
