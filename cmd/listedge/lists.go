package main

import (
	"cmp"
	"context"
	"fmt"

	"listedge/internal/list"
	"listedge/origin/admin"
)

type listsCommand struct {
	Show  listsShow  `cmd:"" example:"--json" help:"Print the lists that a node would serve."`
	Plan  listsPlan  `cmd:"" example:"--apply" help:"Print the SQL that the database lacks for the lists; with --apply, run it."`
	Check listsCheck `cmd:"" example:"--limit 10" help:"Read all rows of the lists, and print those that clients cannot see."`
	Init  listsInit  `cmd:"" example:"shop.products crm.people" help:"Print a first description of tables, to be read and changed."`
}

type listsShow struct {
	DatabaseFlags
	ListsFlag
	jsonFlag
}

// shownList is a list as `lists show` prints it.
type shownList struct {
	Name    string        `json:"name"`
	Scope   string        `json:"scope"`
	Table   string        `json:"table"`
	Digest  string        `json:"digest"`
	Key     string        `json:"key"`
	Tenant  string        `json:"tenant"` // empty = every workspace sees all rows
	Live    string        `json:"live"`   // empty = all rows
	Fields  []shownField  `json:"fields"`
	Orders  []shownOrder  `json:"orders"`
	Filters []shownFilter `json:"filters"`
	Search  []string      `json:"search"` // columns
}

type shownField struct {
	Name     string `json:"name"`
	Column   string `json:"column"`
	Type     string `json:"type"`
	Form     string `json:"form"`
	Nullable bool   `json:"nullable"`
}

type shownOrder struct {
	Name       string `json:"name"`
	Column     string `json:"column"`
	Descending bool   `json:"descending"`
	Fold       bool   `json:"fold"`
}

type shownFilter struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	Keep  string `json:"keep"`
	Few   bool   `json:"few"`
}

func shown(l *list.List) shownList {
	s := shownList{Name: l.Name, Scope: l.Scope(), Table: l.Table.String(), Digest: l.Digest.String(), Key: l.Columns[l.Key].Name, Live: l.Live.String()}
	if l.Tenant >= 0 {
		s.Tenant = l.Columns[l.Tenant].Name
	}
	for i, f := range l.Fields {
		s.Fields = append(s.Fields, shownField{f.Name, l.Columns[i].Name, l.Columns[i].Type.Name, f.Form.String(), f.Nullable})
	}
	for _, o := range l.Orders {
		s.Orders = append(s.Orders, shownOrder{o.Name, l.Columns[o.Column].Name, o.Descending, o.Fold})
	}
	for _, f := range l.Filters {
		for _, v := range f.Values {
			s.Filters = append(s.Filters, shownFilter{f.Name, v.Name, v.Keep.String(), v.Few})
		}
	}
	for _, i := range l.Search {
		s.Search = append(s.Search, l.Columns[i].Name)
	}
	return s
}

// Run prints the lists.
func (c *listsShow) Run(ctx context.Context, t *terminal) error {
	lists, err := c.Resolve(ctx, c.DatabaseURL)
	if err != nil {
		return err
	}
	var all []shownList
	for _, l := range lists.Lists {
		all = append(all, shown(l))
	}
	return c.print(t, all, nil, "{{range .}}/v1/{{.Name}} of {{.Table}}, scope {{.Scope}}, digest {{.Digest}}\n"+
		"  key {{.Key}}, {{with .Tenant}}tenant {{.}}{{else}}for every workspace{{end}}{{with .Live}}, live where {{.}}{{end}}\n"+
		"{{range .Fields}}  {{.Name}}\t{{.Form}}{{if .Nullable}} or null{{end}}\tcolumn {{.Column}}, {{.Type}}\n{{end}}"+
		"{{range .Orders}}  sort={{.Name}}\tby {{.Column}}{{if .Fold}}, folded{{end}}{{if .Descending}}, descending{{end}}\n{{end}}"+
		"{{range .Filters}}  {{.Name}}={{.Value}}\twhere {{.Keep}}{{if .Few}}, few{{end}}\n{{end}}"+
		"{{with .Search}}  search\tin {{join . `, `}}\n{{end}}{{end}}")
}

type listsPlan struct {
	ChangeFlags
	ReplicationFlag
	ListsFlag
	jsonFlag
	Apply bool `help:"Run the SQL, step by step."`
}

const stepFormat = "{{range .}}-- {{.Why}}. It locks {{.Locks}}.\n{{.SQL}};\n{{end}}"

// Run prints the steps that the database lacks, or makes them: then each is printed when it begins.
func (c *listsPlan) Run(ctx acting, t *terminal) error {
	url := cmp.Or(c.ReplicationURL, c.DatabaseURL) // a pooler may end the session between the steps
	lists, err := c.Resolve(ctx, url)
	if err != nil {
		return err
	}
	var steps []admin.Step
	if c.Apply {
		err = admin.ApplyLists(ctx, url, lists, func(s admin.Step) {
			steps = append(steps, s)
			if !c.JSON {
				_ = c.print(t, []admin.Step{s}, nil, stepFormat) // run returns its error
			}
		})
		return c.print(t, steps, err, "{{if not .}}-- nothing is missing\n{{end}}")
	}
	steps, err = admin.PlanLists(ctx, url, lists)
	return c.print(t, steps, err, "{{if not .}}-- nothing is missing\n{{end}}"+stepFormat)
}

type listsCheck struct {
	DatabaseFlags
	ListsFlag
	jsonFlag
	Limit int `help:"Print at most so many rows." default:"100" placeholder:"N"`
}

// checkedLists is what `lists check` prints.
type checkedLists struct {
	Lists  []admin.Checked `json:"lists"`
	Faults []admin.Fault   `json:"faults"` // the first ones
}

// Run reads all rows, and fails if clients cannot see one of them.
func (c *listsCheck) Run(ctx context.Context, t *terminal, a *admin.Conn) error {
	lists, err := c.Resolve(ctx, c.DatabaseURL)
	if err != nil {
		return err
	}
	found := checkedLists{Faults: []admin.Fault{}}
	faults := 0
	found.Lists, err = admin.CheckLists(ctx, a, lists, func(f admin.Fault) {
		faults++
		if faults <= c.Limit {
			found.Faults = append(found.Faults, f)
		}
	})
	err = c.print(t, found, err, "{{range .Faults}}{{.List}}{{with .Tenant}}, tenant {{.}}{{end}}, key {{.Key}}: {{.Why}}\n{{end}}"+
		"LIST\tROWS\tLIVE\tOF NO WORKSPACE\tFAULTS\n{{range .Lists}}{{.List}}\t{{.Rows}}\t{{.Live}}\t{{.Nobody}}\t{{.Faults}}\n{{end}}")
	if err == nil && faults > 0 {
		err = fmt.Errorf("clients cannot see %d rows as they should: mend the rows, or leave out what they have", faults)
	}
	return err
}

type listsInit struct {
	DatabaseFlags
	Tables []string `arg:"" help:"Tables, as schema.table."`
}

// Run prints a first description.
func (c *listsInit) Run(ctx context.Context, t *terminal, a *admin.Conn) error {
	var tables []list.Name
	for _, text := range c.Tables {
		n, ok := list.ParseName(text)
		if !ok {
			return usageError{Err: fmt.Errorf("%q is no table: write schema.table, and \"…\" around a name with dots", text)}
		}
		tables = append(tables, n)
	}
	text, err := admin.InitLists(ctx, a, tables)
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(t.out, visibleLines(text))
	return err
}
