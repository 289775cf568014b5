package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// What a change costs: clients ask for the pages of many lists again and again while
// rows change.

const (
	precisionItems = 100_000
	precisionAsked = 1000            // requests a second
	precisionTime  = 6 * time.Second // of each case
)

// precisionLists are the lists whose pages are asked for, and the share of each.
var precisionLists = []struct {
	name, query string
	share       float64
}{
	{"createdAt", "", 0.25}, {"name", "sort=name&", 0.25}, {"low", "stock=low&", 0.125},
	{"tracked", "stock=tracked&", 0.125}, {"goods", "type=goods&", 0.125}, {"search", "", 0.125}, // of the commonest word
}

// precisionCases is a choice: all changes with 2,000 pages on one node; fewer pages and
// more nodes with 10 changes a second, where each change counts most.
var precisionCases = []struct {
	nodes, pages int
	perSecond    []float64
}{{1, 200, []float64{10}}, {1, 2000, []float64{10, 100}}, {3, 2000, []float64{10}}}

// precisionChanges are the ways in which rows change.
var precisionChanges = []struct {
	name string
	sql  []string // of which one is taken at random; $1 is a row of the workspace $3, $2 a number
}{
	{"stock, random rows", []string{changeStock}},
	{"stock, one row", []string{changeStock}},
	{"renames", []string{changeName}},
	{"new rows", []string{newRow}},
	{"deletions", []string{deleteRow}},
	{"mixed", append(slices.Repeat([]string{changeStock}, 7), changeName, newRow, deleteRow)},
	{"as shops write", append(slices.Repeat([]string{changeStock}, 7), anyScript, newAnyScript, activate)},
}

const (
	changeStock = "UPDATE items SET stock_on_hand = stock_on_hand + 2 * ($2::int % 2) - 1 WHERE id = $1 AND workspace_id = $3"
	changeName  = "UPDATE items SET name = (ARRAY['Anchor','Bolt','chain','Dowel','hinge','Nut','screw','Washer'])[1 + $2 % 8] || ' ' || $2 " +
		"WHERE id = $1 AND workspace_id = $3"
	newRow = "INSERT INTO items (workspace_id, name, type, track_stock) SELECT workspace_id, 'New item ' || $2::int, 'GOODS', true " +
		"FROM items WHERE id = $1 AND workspace_id = $3"
	// Names in four scripts.
	fourScripts  = "(ARRAY['CAFÉ MUG','東京 抹茶','Чайник','شاي'])[1 + $2 % 4] || ' ' || $2::int"
	anyScript    = "UPDATE items SET name = " + fourScripts + " WHERE id = $1 AND workspace_id = $3"
	newAnyScript = "INSERT INTO items (workspace_id, name, type, track_stock) SELECT workspace_id, " + fourScripts +
		", 'GOODS', true FROM items WHERE id = $1 AND workspace_id = $3"
	activate  = "UPDATE items SET active = NOT active WHERE id = $1 AND $2::int >= 0 AND workspace_id = $3"
	deleteRow = "DELETE FROM items WHERE id = $1 AND $2::int >= 0 AND workspace_id = $3"
)

// precision is a workspace and the pages that are asked for.
type precision struct {
	*subject
	workspace uuid.UUID
	key       string
	word      string      // that many of its rows have
	rows      []uuid.UUID // that nobody has changed yet, in a random order
	numbers   int         // of changes
	length    time.Duration

	pages []precisionPage
}

type precisionPage struct {
	path string
	list int // in precisionLists
}

// measurePrecision prints how many requests stay hits while rows change, and what a
// change costs.
func measurePrecision(ctx context.Context, s *subject, r *report) error {
	p := &precision{subject: s}
	must(p.seed(ctx))
	var lists []string
	for _, l := range precisionLists {
		lists = append(lists, l.name)
	}
	t := r.table(fmt.Sprintf("%d items, %d requests/s for pages of %d, each as often", len(p.rows), precisionAsked, pageSize),
		"change", "per s", "pages", "nodes", "hits, %", "… of "+strings.Join(lists, ", "), "queries per change", "goals", "CPU of nodes, ms/s", "of Redis")
	for _, c := range precisionCases {
		f := must1(startFollowing(ctx, s, c.nodes))
		err := p.list(f.nodes[0], c.pages)
		if err == nil {
			for _, change := range precisionChanges {
				for _, rate := range c.perSecond {
					var found precisionCost
					if found, err = p.ask(ctx, f, change.name == "stock, one row", change.sql, rate); err != nil {
						err = fmt.Errorf("%s: %w", change.name, err)
						break
					}
					t.add(append([]string{change.name, fmt.Sprint(rate), fmt.Sprint(len(p.pages)), fmt.Sprint(c.nodes)}, found.cells(rate)...)...)
				}
			}
		}
		f.end()
		if err != nil {
			return err
		}
	}
	return nil
}

// seed makes a workspace of rows of the large one.
func (p *precision) seed(ctx context.Context) (err error) {
	items := min(precisionItems, p.large().items)
	p.length = min(precisionTime, precisionTime*time.Duration(items)/precisionItems+300*time.Millisecond)
	if p.workspace, p.key, err = smallWorkspace(ctx, p.subject); err != nil {
		return err
	}
	_, err = p.db.Exec(ctx, `INSERT INTO items (workspace_id, name, type, sku, description, track_stock, stock_on_hand, reorder_point, created_at)
		SELECT $1, name, type, sku, description, track_stock, stock_on_hand, reorder_point, created_at
		FROM items WHERE workspace_id = $2 AND active LIMIT $3`, p.workspace, p.large().workspace, items-1)
	if err != nil {
		return err
	}
	if _, err := p.db.Exec(ctx, "VACUUM ANALYZE items"); err != nil {
		return err
	}
	rows, err := p.db.Query(ctx, "SELECT id FROM items WHERE workspace_id = $1 ORDER BY md5(id::text)", p.workspace)
	if err != nil {
		return err
	}
	if p.rows, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID]); err != nil {
		return err
	}
	if p.word, err = p.term(ctx, p.workspace, "many"); err != nil {
		return err
	}
	return p.dropSlot(ctx)
}

// list walks through the lists until it has so many pages.
func (p *precision) list(n *server, pages int) error {
	p.pages = nil
	c := n.client(p.key)
	for list, of := range precisionLists {
		path := "/v1/items?" + of.query + "limit=" + strconv.Itoa(pageSize)
		if of.name == "search" {
			path = "/v1/items?search=" + url.QueryEscape(p.word) + "&limit=" + strconv.Itoa(pageSize)
		}
		for cursor, left := "", int(of.share*float64(pages)); left > 0; left-- {
			body, _, err := c.get(path+cursor, "identity")
			if err != nil {
				return err
			}
			var page struct {
				Page struct{ NextCursor string }
			}
			if err := json.Unmarshal(body, &page); err != nil {
				return err
			}
			p.pages = append(p.pages, precisionPage{path + cursor, list})
			if cursor = "&cursor=" + page.Page.NextCursor; page.Page.NextCursor == "" {
				break
			}
		}
	}
	rand.Shuffle(len(p.pages), func(i, j int) { p.pages[i], p.pages[j] = p.pages[j], p.pages[i] })
	return nil
}

// cells are a row of the table, from the hits on. The goals are 99.9 % hits with 10 changes a
// second, 99.5 % with more, and one query in 20 changes.
func (c *precisionCost) cells(perSecond float64) []string {
	share := func(hits, requests int) float64 { return 100 * float64(hits) / float64(max(1, requests)) }
	hits, requests := 0, 0
	var by []string
	for i, of := range c.lists {
		hits, requests = hits+of.hits, requests+of.requests
		by = append(by, fmt.Sprintf("%.1f", share(c.lists[i].hits, c.lists[i].requests)))
	}
	perChange, least, goals := c.used["queries"]/float64(max(1, c.changes)), 99.9, "met"
	if perSecond > 10 {
		least = 99.5
	}
	if share(hits, requests) < least || perChange > 0.05 {
		goals = "missed"
	}
	used := func(name string) string { return fmt.Sprintf("%.1f", 1000*c.used[name]/c.used["seconds"]) }
	return []string{fmt.Sprintf("%.2f", share(hits, requests)), strings.Join(by, ", "), fmt.Sprintf("%.2f", perChange), goals,
		used("cpu"), used("redis cpu")}
}
