package edge

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"unicode"

	"listedge/internal/list"
)

// OpenAPI returns the description of the API of these lists, the document at /openapi.json: a template,
// which has what holds for every list, filled with what the lists say of themselves. What it shows of
// invalid parameters is what the parser says.
func OpenAPI(lists *list.Set) []byte {
	var prose, document, compact bytes.Buffer
	r := referenceOf(lists)
	must(0, must(template.New("").Parse(openAPIProse)).Execute(&prose, r))
	r.Prose = strings.TrimSpace(prose.String())
	must(0, must(template.New("").Funcs(template.FuncMap{"json": jsonOf, "headers": headersOf, "pageHeaders": pageHeaders,
		"ref": func(kind, name string) string { return jsonOf(refTo(kind, name)) }}).Parse(openAPITemplate)).Execute(&document, r))
	must(0, json.Compact(&compact, document.Bytes()))
	return compact.Bytes()
}

var (
	//go:embed openapi.tmpl
	openAPITemplate string
	//go:embed openapi.md
	openAPIProse string
)

// reference is what the template is filled with.
type reference struct {
	Title, About, Prose string
	Names, Scopes       string
	Everybody           string // names of the lists of which every workspace sees all rows
	Tracked             string // names of the lists whose changes clients may follow; empty = none
	Keys                string // fields that are the keys of these
	Cursor, RequestID   string // of examples
	MaxDetails          int    // of invalid parameters
	AnyJSON             bool   // a list has fields that are JSON
	First               *describedList
	Lists               []*describedList
	Parameters          []*describedParameter
	Responses           []errorResponse
}

// describedList is a list. Row, Page and Response are names of components; ids of operations end in
// Response.
type describedList struct {
	*list.List
	Title, About, Manual string
	Row, Page, Response  string
	Sorted               string // a part of a query string, for another order than the default
	Own                  []*describedParameter
	Required             []string
	Properties           object
	Example, Sparse      object // rows; Sparse has null wherever it may
}

// describedParameter is a parameter of a list, and the component that says what it is.
type describedParameter struct {
	Name, Component string
	suffix          string // of the component's name, if others have one for a parameter of the name
	Text            object
}

func referenceOf(lists *list.Set) *reference {
	r := &reference{Title: titleOf(lists), About: lists.About, Names: enumerate(lists.Names(), "and"),
		Cursor: "GnCXowE676b9XPLetAuPSlJsHU45mlcvHo08S2oABkde9ldLsA", RequestID: exampleID}
	components := componentsOf(openAPITemplate)
	var scopes, everybody, tracked, keys []string
	for _, l := range lists.Lists {
		scopes = append(scopes, code(l.Scope()))
		if l.Tenant < 0 {
			everybody = append(everybody, l.Name)
		}
		if l.Tracks() {
			tracked = append(tracked, l.Name)
			keys = append(keys, code(l.Fields[l.Key].Name))
		}
		r.Lists = append(r.Lists, describeList(l, components))
		r.AnyJSON = r.AnyJSON || slices.ContainsFunc(l.Fields, func(f list.Field) bool { return f.Form == list.JSON })
		r.MaxDetails = max(r.MaxDetails, maxUnknown+len(endpointOf(l).parameters))
	}
	r.First, r.Scopes = r.Lists[0], strings.Join(scopes, ", ")
	if everybody != nil {
		r.Everybody = enumerate(everybody, "and")
	}
	if tracked != nil {
		r.Tracked, r.Keys = enumerate(tracked, "and"), keysOf(tracked, keys)
	}
	r.shareParameters(components)
	r.Responses = errorResponsesOf(lists.Lists)
	return r
}

// keysOf says which field is the key of each list.
func keysOf(lists, keys []string) string {
	if len(slices.Compact(slices.Clone(keys))) == 1 {
		return keys[0]
	}
	var each []string
	for i, key := range keys {
		each = append(each, key+" of "+lists[i])
	}
	return enumerate(each, "and")
}

// titleOf returns the title of the reference.
func titleOf(lists *list.Set) string { return cmp.Or(lists.Title, "Lists") }

func describeList(l *list.List, components components) *describedList {
	row := cmp.Or(l.One, singular(l.Name))
	d := &describedList{List: l, Title: cmp.Or(l.Title, "List "+l.Name), About: cmp.Or(l.About, l.Title, "Rows of "+l.Name+"."),
		Row: components.add("schemas", row), Response: components.add("responses", l.Name)}
	d.Page = components.add("schemas", d.Row+"Page")
	if len(l.Orders) > 1 {
		d.Sorted = "&sort=" + l.Orders[len(l.Orders)-1].Name
	}
	for i := range l.Fields {
		f := &l.Fields[i]
		example := json.RawMessage(cmp.Or(f.Example, exampleOf(f, &l.Columns[i])))
		d.Required = append(d.Required, f.Name)
		d.Properties.add(f.Name, schemaOf(f, &l.Columns[i]))
		d.Example.add(f.Name, example)
		if f.Nullable {
			example = json.RawMessage("null")
		}
		d.Sparse.add(f.Name, example)
	}
	d.Manual, d.Own = manualOf(d), ownParameters(l)
	return d
}

// manualOf is what the operation of a list says, with a request to try.
func manualOf(d *describedList) string {
	whose, together := "A page of the "+d.Name+" of the key's workspace.", "Filters apply together."
	if d.Tenant < 0 {
		whose = "A page of " + d.Name + ", which are the same for every workspace."
	}
	try := strings.TrimPrefix(d.Sorted+"&limit=20", "&")
	for _, f := range d.Filters[:min(1, len(d.Filters))] {
		try = f.Name + "=" + f.Values[len(f.Values)-1].Name + "&" + try
	}
	if len(d.Search) > 0 {
		together = "`search` looks in " + enumerate(searchedOf(d.List), "and") + "; filters and search apply together."
	}
	return fmt.Sprintf("%s Needs the scope `%s`.\n\nWhile `page.hasMore` is true there is a next page: repeat the request with `cursor` set to "+
		"`page.nextCursor` and everything else unchanged, except `limit`, which may change.\n\n%s\n\n```\n"+
		"curl -H \"X-API-Key: $KEY\" --compressed \\\n  'http://localhost:8080/v1/%s?%s'\n```", whose, d.Scope(), together, d.Name, try)
}

// searchedOf returns the names of the fields that a search compares, as code.
func searchedOf(l *list.List) (names []string) {
	for _, i := range l.Search {
		names = append(names, code(l.Fields[i].Name))
	}
	return names
}

// ownParameters are the parameters that a list has beside cursor and limit.
func ownParameters(l *list.List) (all []*describedParameter) {
	add := func(name, suffix, about string, schema object) {
		all = append(all, &describedParameter{Name: name, suffix: suffix, Text: object{{"name", name}, {"in", "query"}, {"description", about}, {"schema", schema}}})
	}
	if len(l.Search) > 0 {
		add("search", "", searchText(l), object{{"type", "string"}, {"pattern", `^[^\x00]*$`}})
		all[0].Text.add("allowEmptyValue", true)
	}
	add("sort", "", sortText(l), oneOfSchema(ordersOf(l)))
	for i := range l.Filters {
		f := &l.Filters[i]
		add(f.Name, "Filter", cmp.Or(f.About, "Selects "+enumerate(valuesOf(f)[1:], "or")+"."), oneOfSchema(valuesOf(f)))
	}
	return all
}

// shareParameters gives the parameters of all lists their components. Lists share one if all that have the
// parameter have the same; else each has its own.
func (r *reference) shareParameters(components components) {
	alike := map[string][]*describedParameter{} // of the same name
	for _, d := range r.Lists {
		for _, p := range d.Own {
			alike[p.Name] = append(alike[p.Name], p)
		}
	}
	for _, d := range r.Lists {
		for _, p := range d.Own {
			first := alike[p.Name][0]
			switch {
			case slices.ContainsFunc(alike[p.Name], func(other *describedParameter) bool { return !reflect.DeepEqual(p.Text, other.Text) }):
				p.Component = components.add("parameters", d.Row+" "+p.Name+p.suffix)
			case p != first:
				p.Component = first.Component
				continue
			default:
				p.Component = components.add("parameters", p.Name)
			}
			r.Parameters = append(r.Parameters, p)
		}
	}
}

// components gives components their names, each once: generators make types of them.
type components map[string]bool

// componentsOf returns those names that a template has taken, of whatever kind.
func componentsOf(template string) components {
	taken := components{}
	for _, m := range regexp.MustCompile(`"([A-Z]\w*)": `).FindAllStringSubmatch(template, -1) {
		for _, kind := range []string{"schemas", "parameters", "responses"} {
			taken[kind+strings.ToLower(m[1])] = true
		}
	}
	return taken
}

// add returns a new name of the kind, of the words of a text: with a number if others have it.
func (c components) add(kind, text string) string {
	name := ""
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return !alphanumeric(r) }) {
		name += strings.ToUpper(word[:1]) + word[1:]
	}
	name = cmp.Or(name, "Row") // of a text in another script
	for base, n := name, 2; c[kind+strings.ToLower(name)]; n++ {
		name = base + strconv.Itoa(n)
	}
	c[kind+strings.ToLower(name)] = true
	return name
}

func alphanumeric(r rune) bool {
	return r < unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r))
}

// singular returns what a row of a list is called: the list's name without the ending of a plural.
func singular(name string) string {
	stem, found := strings.CutSuffix(name, "ies")
	if found {
		return stem + "y"
	}
	for _, ending := range []string{"ses", "xes", "zes", "ches", "shes"} {
		if strings.HasSuffix(name, ending) {
			return strings.TrimSuffix(name, "es")
		}
	}
	if strings.HasSuffix(name, "ss") {
		return name
	}
	return strings.TrimSuffix(name, "s")
}

func searchText(l *list.List) string {
	where := "in which one of " + strings.Join(searchedOf(l), ", ") + " contains"
	if len(l.Search) == 1 {
		where = "whose " + searchedOf(l)[0] + " contains"
	}
	return "Selects the rows " + where + " this text. Neither case nor accents count: `strasse` finds `Straße`, `cafe` finds `Café`. Counted in Unicode " +
		fmt.Sprintf("code points after trimming white space at both ends, at most %d; empty = no search. ", maxSearch) +
		"One or two letters (Latin, Greek, Cyrillic, Arabic, Devanagari … up to U+0DFF) that few rows contain are compared with every row of the " +
		"workspace; if that takes too long, the answer is 503. From Thai on (U+0E00: Thai, Chinese, Japanese, Korean …) one character is enough for an " +
		"index. `%`, `_` and `\\` are ordinary characters. NUL is refused."
}

func sortText(l *list.List) string {
	text := ""
	for i := range l.Orders {
		text += code(l.Orders[i].Name) + ": " + cmp.Or(l.Orders[i].About, orderText(l, &l.Orders[i])) + ". "
	}
	by := "key"
	if l.Key < len(l.Fields) {
		by = code(l.Fields[l.Key].Name)
	}
	return text + "Rows that are equal by this are ordered by " + by + " in the same direction."
}

// orderText says how an order is.
func orderText(l *list.List, o *list.Order) string {
	column, by := &l.Columns[o.Column], "by its value"
	number := column.IsInteger() || column.Base == "numeric"
	if o.Column < len(l.Fields) {
		by = "by " + code(l.Fields[o.Column].Name)
	}
	backwards := ""
	if o.Descending {
		backwards = ", backwards"
	}
	switch {
	case column.IsInstant() && o.Descending:
		return "newest first"
	case column.IsInstant():
		return "oldest first"
	case o.Fold:
		return by + " in upper case and without accents (NFKD without U+0300 to U+036F; also Æ as AE, Œ as OE, Ø as O, Đ and Ð as D, Ħ as H, Ł as L, Ŧ as T, " +
			fmt.Sprintf("ı as I, ß as SS), of which the first %d characters are compared code point by code point", list.FoldKeyLength) + backwards
	case number && o.Descending:
		return by + ", the largest first"
	case number:
		return by + ", the smallest first"
	}
	return by + ", byte by byte" + backwards
}

// schemaOf describes the values of a field.
func schemaOf(f *list.Field, c *list.Column) (schema object) {
	kind, about := "string", ""
	var rules object
	switch f.Form {
	case list.String:
		if c.Base == "uuid" {
			rules = object{{"format", "uuid"}, {"pattern", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"}}
		}
		if f.Min != "" {
			rules.add("minLength", json.RawMessage(f.Min))
		}
	case list.Decimal:
		about, rules = "A decimal string, as stored.", object{{"pattern", `^-?(0|[1-9][0-9]*)(\.[0-9]+)?$`}}
	case list.Number:
		kind, rules = "number", object{{"format", "double"}}
		if c.IsInteger() {
			kind, rules = "integer", object{{"format", "int64"}}
		}
		for _, bound := range []member{{"minimum", f.Min}, {"maximum", f.Max}} {
			if bound.value != "" {
				rules.add(bound.name, json.RawMessage(bound.value.(string)))
			}
		}
	case list.Bool:
		kind = "boolean"
	case list.Instant:
		about = fmt.Sprintf("UTC, %s decimals, `Z`.", map[int]string{3: "three", 6: "six"}[c.Decimals()])
		rules = object{{"format", "date-time"}, {"pattern", fmt.Sprintf(`^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{%d}Z$`, c.Decimals())}}
	case list.JSON:
		kind, about = "", "Any JSON, as stored."
		rules.add("anyOf", []object{refTo("schemas", "AnyJSON")})
	}
	if kind != "" {
		schema.add("type", kind)
	}
	about = cmp.Or(f.About, about)
	if about != "" {
		schema.add("description", about)
	}
	if f.Nullable && kind != "" {
		schema.add("nullable", true)
	}
	if f.Enum != nil {
		values := []any{}
		for _, v := range f.Enum {
			values = append(values, v)
		}
		if f.Nullable {
			values = append(values, nil)
		}
		rules.add("enum", values)
	}
	return append(schema, rules...)
}

// exampleOf returns a value of a field that has no example of its own, in JSON.
func exampleOf(f *list.Field, c *list.Column) string {
	switch {
	case f.Enum != nil:
		return jsonOf(f.Enum[0])
	case f.Form == list.Bool:
		return "true"
	case f.Form == list.Number:
		return cmp.Or(f.Min, f.Max, "1")
	case f.Form == list.Decimal:
		return `"12.50"`
	case f.Form == list.Instant:
		return `"2026-01-05T09:30:00.120000`[:len(`"2026-01-05T09:30:00.`)+c.Decimals()] + `Z"`
	case f.Form == list.JSON:
		return "{}"
	case c.Base == "uuid":
		return `"c3a1f0e2-9b84-4d57-8e61-0f2a7b3c9d15"`
	}
	least, _ := strconv.Atoi(f.Min)
	return jsonOf(strings.Repeat("text ", least/5) + "text")
}

// refTo refers to a component.
func refTo(kind, name string) object { return object{{"$ref", "#/components/" + kind + "/" + name}} }

func oneOfSchema(values []string) object {
	return object{{"type", "string"}, {"enum", values}, {"default", values[0]}}
}

// code marks a text in Markdown as one for programs.
func code(text string) string { return "`" + text + "`" }

// object is an object of JSON, whose members keep their order.
type object []member

type member struct {
	name  string
	value any
}

func (o *object) add(name string, value any) { *o = append(*o, member{name, value}) }

// MarshalJSON implements json.Marshaler.
func (o object) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, m := range o {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, jsonOf(m.name)+":"+jsonOf(m.value)...)
	}
	return append(b, '}'), nil
}

// jsonOf returns a value as JSON, in which < and > are themselves.
func jsonOf(value any) string {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	must(0, encoder.Encode(value))
	return strings.TrimSpace(b.String())
}
