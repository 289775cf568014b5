package edge

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/uuid"

	"listedge/internal/list"
	"listedge/internal/page"
	"listedge/metrics"
	"listedge/origin/apikey"
)

// theLists are three lists that are not the contract's: one with more filters than a byte has bits, one with a
// single order and no search, one that every workspace sees whole. The name of the row of the last is taken.
const theLists = `
title: Shop & <Co>
about: Prices are in cents.
lists:
  products:
    table: shop.products
    tenant: account_id
    key: id
    fields:
      id:
      title: {min: 7, about: What is on the label.}
      code:
      priceCents: {min: 0, max: 100000}
      weight: {as: number}
      kind: {enum: [goods, service]}
      data:
      due:
      insertedAt:
    orders:
      insertedAt: {descending: true}
      title: {fold: true}
      price: {by: priceCents}
      code: {by: title, descending: true}
    filters:
      kind: {goods: kind = 'goods', services: kind = 'service'}
      color: {none: code is null}
      stock: {out: on_hand <= 0, low: on_hand < 5, all-right: on_hand >= 5}
      price: {zero: price_cents = 0, other: price_cents <> 0}
      code: {about: Whether it has a code., known: code is not null}
      large: {"yes": on_hand > 100, "no": on_hand <= 100}
      cache-control: {x: on_hand = 7}
    search: [title]
  crm-people:
    row: person
    title: The people
    table: crm.people
    tenant: org_id
    key: id
    fields:
      id:
      fullName:
      isVendor:
    orders:
      fullName: {fold: true}
    filters:
      kind: {vendor: is_vendor}
  errors:
    table: log.errors
    key: id
    fields:
      at:
      text: {min: 1}
    orders:
      at:
    search: [text]
`

// listsOf resolves a description. Each table is a line: its name, its key and its columns.
func listsOf(t *testing.T, description string, tables ...string) *list.Set {
	t.Helper()
	catalogue := &list.Catalogue{}
	for _, table := range tables {
		words := strings.Fields(table)
		schema, name, _ := strings.Cut(words[0], ".")
		r := list.Relation{Name: list.Name{Schema: schema, Table: name}, Kind: "r", Persistence: "p", Unique: [][]string{strings.Split(words[1], ",")}}
		for _, word := range words[2:] {
			column, base, _ := strings.Cut(word, ":")
			base, nullable := strings.CutSuffix(base, "?")
			kind := list.Type{OID: oids[base], Base: base, Name: base, Mod: -1}
			r.Columns = append(r.Columns, list.RelationColumn{Name: column, Type: kind, NotNull: !nullable})
		}
		catalogue.Relations = append(catalogue.Relations, r)
	}
	return must(must(list.Parse("lists.yaml", []byte(description))).Resolve(catalogue))
}

var oids = map[string]uint32{"bool": 16, "int8": 20, "int4": 23, "text": 25, "float8": 701, "date": 1082, "timestamptz": 1184, "uuid": 2950, "jsonb": 3802}

func threeLists(t *testing.T) *list.Set {
	return listsOf(t, theLists,
		"shop.products account_id,id account_id:int4 id:int8 title:text code:text? price_cents:int4 weight:float8? kind:text? data:jsonb? due:date? on_hand:int4 "+
			"inserted_at:timestamptz",
		"crm.people org_id,id id:uuid org_id:uuid full_name:text is_vendor:bool",
		"log.errors id id:int8 at:timestamptz text:text?")
}

// shop is a server of lists, whose pages have one row each, that names the page.
type shop struct {
	*testing.T
	server *Server
}

// openShop starts a server with keys that have these tenants and scopes, and returns their texts.
func openShop(t *testing.T, lists *list.Set, keys ...apikey.Key) (s *shop, texts []string) {
	s = &shop{T: t}
	hashes := map[apikey.Hash]apikey.Key{}
	for _, k := range keys {
		text := apikey.Generate()
		k.ID, k.Workspace, k.Limit = uuid.New(), uuid.New(), apikey.Limit{Set: true, Rate: 1e6, Burst: 1e6}
		hash, _ := apikey.HashOf([]byte(text))
		hashes[hash] = k
		texts = append(texts, text)
	}
	known := func(context.Context, []apikey.Hash, string) (map[apikey.Hash]apikey.Key, error) { return hashes, nil }
	s.server = serverOf(t, lists, newPages(), metrics.New("test", "").Edge, known)
	return s, texts
}

// store stores a page that has a row of this text.
func (s *shop) store(q page.Query, row string) {
	s.Helper()
	q.Limit = 50
	fillWith(s, s.server.Cache, q, row)
}

// expect asks for a target, and expects a part of the response.
func (s *shop) expect(key, target string, status int, part string) {
	s.Helper()
	got := ask(s.T, s.server, "GET", target, "X-API-Key", key, "Cache-Control", "only-if-cached")
	if got.Status != status || !strings.Contains(got.Body, part) {
		s.Errorf("%s: %d %s, want %d and %q", target, got.Status, got.Body, status, part)
	}
}

func TestEveryFilterOfManyWorks(t *testing.T) {
	lists := threeLists(t)
	l := lists.ByName("products")
	s, keys := openShop(t, lists, apikey.Key{Tenant: "7", Scopes: 1})
	q, all := page.Query{List: l, Tenant: "7"}, ""
	s.store(q, "no filter")
	for _, f := range l.Filters {
		for _, v := range f.Values {
			t.Run(f.Name+"="+v.Name, func(t *testing.T) {
				s, row := &shop{t, s.server}, "row of "+f.Name+" "+v.Name
				filtered := q
				filtered.Match = v.Bit
				s.store(filtered, row)
				s.expect(keys[0], "/v1/products?"+f.Name+"="+v.Name, 200, row)
				s.expect(keys[0], "/v1/products?"+f.Name+"=all", 200, "no filter")
				s.expect(keys[0], "/v1/products?"+f.Name+"="+v.Name+"&"+f.Name+"=all", 400, f.Name+": must be given once.")
				s.expect(keys[0], "/v1/products?"+f.Name+"=*", 400, f.Name+": must be all")
			})
		}
		q.Match |= f.Values[0].Bit
		all += "&" + f.Name + "=" + f.Values[0].Name
	}
	if len(l.Filters) != 7 {
		t.Errorf("%d filters", len(l.Filters))
	}
	s.store(q, "all filters")
	s.expect(keys[0], "/v1/products?limit=50"+all, 200, "all filters")
}

// As many filters as a description may have: each is told apart from the others, and from the other parameters.
func TestAsManyFiltersAsThereMayBe(t *testing.T) {
	description, query := "lists:\n  a:\n    table: a.a\n    key: id\n    fields: {id: }\n    orders: {id: }\n    filters:\n", "cursor=x&limit=0&sort=x"
	for i := range list.MaxValues {
		description += fmt.Sprintf("      f%d: {v: id > %d}\n", i, i)
		query += fmt.Sprintf("&f%d=v", i)
	}
	s, keys := openShop(t, listsOf(t, description, "a.a id id:int8"), apikey.Key{Scopes: 1})
	s.expect(keys[0], "/v1/a?"+query, 400, `"cursor, limit and sort are not valid`)
	s.expect(keys[0], "/v1/a?"+query+"&f0=v&f63=v", 400, `"cursor, f0, f63, limit and sort are not valid`)
	must(0, must(openapi3.NewLoader().LoadFromData(OpenAPI(s.server.Lists))).Validate(t.Context()))
}

func TestListsDiffer(t *testing.T) {
	lists := threeLists(t)
	s, keys := openShop(t, lists, apikey.Key{Tenant: "one", Scopes: 7}, apikey.Key{Tenant: "two", Scopes: 7}, apikey.Key{Tenant: "one", Scopes: 2})
	one, two, onlyPeople := keys[0], keys[1], keys[2]
	people, errors := page.Query{List: lists.ByName("crm-people"), Tenant: "one"}, page.Query{List: lists.ByName("errors")}
	s.store(people, "a person of one")
	s.store(errors, "an error of all")
	for name, c := range map[string]struct {
		key, target string
		status      int
		part        string
	}{
		"its own rows":              {one, "/v1/crm-people", 200, "a person of one"},
		"rows of another":           {two, "/v1/crm-people", 504, ""},
		"rows of all":               {one, "/v1/errors", 200, "an error of all"},
		"rows of all, of another":   {two, "/v1/errors", 200, "an error of all"},
		"search where there is one": {one, "/v1/errors?search=%20", 200, "an error of all"},
		"search where there is none": {one, "/v1/crm-people?search=x", 400,
			"search: is not a parameter of crm-people; these are cursor, kind, limit and sort."},
		"a filter of another list":   {one, "/v1/errors?kind=vendor", 400, "kind: is not a parameter of errors; these are cursor, limit, search and sort."},
		"the only order":             {one, "/v1/crm-people?sort=fullName", 200, "a person of one"},
		"another than the only one":  {one, "/v1/crm-people?sort=at", 400, "sort: must be fullName."},
		"the scope of the list":      {onlyPeople, "/v1/crm-people", 200, "a person of one"},
		"the scope of another list":  {onlyPeople, "/v1/errors", 403, "FORBIDDEN"},
		"a list of the contract":     {one, "/v1/items", 404, "NOT_FOUND"},
		"the reference, without key": {"", "/openapi.json", 200, "Prices are in cents."},
		"its page":                   {"", "/docs", 200, "<title>Shop &amp; &lt;Co&gt;</title>"},
	} {
		t.Run(name, func(t *testing.T) {
			(&shop{t, s.server}).expect(c.key, c.target, c.status, c.part)
		})
	}
}

// The reference of any lists is valid, says what the server does, and names what belongs to each list.
func TestReferenceOfAnyLists(t *testing.T) {
	for name, lists := range map[string]*list.Set{"contract": list.BuiltIn(), "others": threeLists(t)} {
		t.Run(name, func(t *testing.T) {
			doc := must(openapi3.NewLoader().LoadFromData(OpenAPI(lists)))
			must(0, doc.Validate(t.Context(), openapi3.EnableExamplesValidation(), openapi3.EnableMultiError()))
			s, keys := openShop(t, lists, apikey.Key{Scopes: 1<<len(lists.Lists) - 1})
			n := len(doc.Paths.Map())
			if n != len(lists.Lists)+2 {
				t.Errorf("%d paths", n)
			}
			for _, l := range lists.Lists {
				t.Run(l.Name, func(t *testing.T) {
					operation := doc.Paths.Value("/v1/" + l.Name).Get
					parametersAgree(&shop{t, s.server}, keys[0], l, operation)
					rowsAgree(t, l, operation)
					if !strings.Contains(operation.Description, "`"+l.Scope()+"`") || !strings.Contains(doc.Info.Description, "`"+l.Scope()+"`") {
						t.Errorf("%s is not named", l.Scope())
					}
				})
			}
		})
	}
}

// The reference names the fields that are keys, by which clients keep their copies.
func TestReferenceNamesTheKeys(t *testing.T) {
	two := listsOf(t, `
lists:
  cards: {table: shop.cards, key: id, fields: {number: {column: id}, at: }, orders: {at: {descending: true}}}
  notes: {table: shop.notes, key: id, fields: {id: , at: }, orders: {at: {descending: true}}}
`, "shop.cards id id:int8 at:timestamptz", "shop.notes id id:text at:timestamptz")
	for want, lists := range map[string]*list.Set{"(`id`)": list.BuiltIn(), "(`number` of cards and `id` of notes)": two} {
		doc := must(openapi3.NewLoader().LoadFromData(OpenAPI(lists)))
		if !strings.Contains(doc.Info.Description, "stores the rows by their keys "+want) {
			t.Errorf("the keys are not named: %s", want)
		}
	}
}

// parametersAgree compares the parameters of a list that are documented with those that the server takes.
func parametersAgree(s *shop, key string, l *list.List, operation *openapi3.Operation) {
	var documented, values []string
	enums := map[string][]any{}
	for _, p := range operation.Parameters {
		if p.Value.In == "query" {
			documented, enums[p.Value.Name] = append(documented, p.Value.Name), p.Value.Schema.Value.Enum
			for _, v := range p.Value.Schema.Value.Enum {
				values = append(values, v.(string))
			}
		}
	}
	slices.Sort(documented)
	var answer struct {
		Error struct{ Details map[string]string }
	}
	must(0, json.Unmarshal([]byte(ask(s.T, s.server, "GET", "/v1/"+l.Name+"?none=x", "X-API-Key", key).Body), &answer))
	_, known, _ := strings.Cut(answer.Error.Details["none"], "these are ")
	if strings.ReplaceAll(known, " and ", ", ") != strings.Join(documented, ", ") {
		s.Errorf("the server takes %s, documented are %v", known, documented)
	}
	for name, enum := range enums {
		for _, value := range values {
			accepted := ask(s.T, s.server, "GET", "/v1/"+l.Name+"?"+name+"="+value, "X-API-Key", key, "Cache-Control", "only-if-cached").Status != 400
			if enum != nil && accepted != slices.Contains(enum, any(value)) {
				s.Errorf("%s=%s: accepted: %v, documented: %v", name, value, accepted, enum)
			}
		}
	}
	next := operation.Responses.Status(200).Value.Links["next"].Value
	got := slices.Sorted(maps.Keys(next.Parameters))
	if next.OperationID != operation.OperationID || !slices.Equal(got, documented) {
		s.Errorf("the next page has %v of %s", got, next.OperationID)
	}
}

// rowsAgree compares the documented rows of a list with its fields.
func rowsAgree(t *testing.T, l *list.List, operation *openapi3.Operation) {
	page := operation.Responses.Status(200).Value.Content.Get("application/json").Schema.Value
	row := page.Properties["data"].Value.Items.Value
	var fields []string
	for _, f := range l.Fields {
		fields = append(fields, f.Name)
		s := row.Properties[f.Name]
		if s == nil || f.Form != list.JSON && s.Value.Nullable != f.Nullable {
			t.Errorf("%s: missing, or null where it must not be", f.Name)
		}
	}
	if !slices.Equal(row.Required, fields) || len(row.Properties) != len(fields) {
		t.Errorf("%v, want %v", row.Required, fields)
	}
}

// What a field is shows in its schema.
func TestSchemasOfFields(t *testing.T) {
	var document struct {
		Components struct {
			Schemas    map[string]struct{ Properties map[string]json.RawMessage }
			Parameters map[string]struct{ Description string }
		}
	}
	must(0, json.Unmarshal(OpenAPI(threeLists(t)), &document))
	for field, want := range map[string]string{
		"Product.id":         `{"type":"integer","format":"int64"}`,
		"Product.title":      `{"type":"string","description":"What is on the label.","minLength":7}`,
		"Product.code":       `{"type":"string","nullable":true}`,
		"Product.priceCents": `{"type":"integer","format":"int64","minimum":0,"maximum":100000}`,
		"Product.weight":     `{"type":"number","nullable":true,"format":"double"}`,
		"Product.kind":       `{"type":"string","nullable":true,"enum":["goods","service",null]}`,
		"Product.data":       `{"description":"Any JSON, as stored.","anyOf":[{"$ref":"#/components/schemas/AnyJSON"}]}`,
		"Product.due": `{"type":"string","description":"UTC, three decimals, ` + "`Z`" + `.","nullable":true,"format":"date-time",` +
			`"pattern":"^\\d{4}-\\d{2}-\\d{2}T\\d{2}:\\d{2}:\\d{2}\\.\\d{3}Z$"}`,
		"Product.insertedAt": `{"type":"string","description":"UTC, six decimals, ` + "`Z`" + `.","format":"date-time",` +
			`"pattern":"^\\d{4}-\\d{2}-\\d{2}T\\d{2}:\\d{2}:\\d{2}\\.\\d{6}Z$"}`,
		"Person.id":       `{"type":"string","format":"uuid","pattern":"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"}`,
		"Person.isVendor": `{"type":"boolean"}`,
		"Error2.text":     `{"type":"string","nullable":true,"minLength":1}`,
	} {
		t.Run(field, func(t *testing.T) {
			row, name, _ := strings.Cut(field, ".")
			got := string(document.Components.Schemas[row].Properties[name])
			if got != want {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
	for parameter, part := range map[string]string{
		"ProductSort": "`insertedAt`: newest first. `title`: by `title` in upper case", "PersonSort": "`fullName`: by `fullName` in upper case",
		"Error2Sort": "`at`: oldest first. Rows that are equal by this are ordered by key in", "ProductSearch": "whose `title` contains",
		"Error2Search": "whose `text` contains", "ProductKindFilter": "Selects goods or services.", "PersonKindFilter": "Selects vendor.",
		"Code": "Whether it has a code.", "CacheControl2": "Selects x.",
	} {
		t.Run(parameter, func(t *testing.T) {
			got := document.Components.Parameters[parameter].Description
			if !strings.Contains(got, part) {
				t.Errorf("%q, want %q", got, part)
			}
		})
	}
}
