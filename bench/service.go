package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The service that an experienced Go engineer writes in a day: net/http,
// structs, encoding/json, pgx. It lists items by the same statement, checks the
// key and has cursors; it has no limits, no cache, no filters and no search.

const serviceArgument = "service"

type serviceItem struct {
	ID                 uuid.UUID  `json:"id"`
	Name               string     `json:"name"`
	Type               string     `json:"type"`
	SKU                *string    `json:"sku"`
	Description        *string    `json:"description"`
	Unit               *string    `json:"unit"`
	ImagePath          *string    `json:"imagePath"`
	PreferredContactID *uuid.UUID `json:"preferredContactId"`
	CostPrice          string     `json:"costPrice"`
	AvgCost            string     `json:"avgCost"`
	SellingPrice       string     `json:"sellingPrice"`
	Taxable            bool       `json:"taxable"`
	TrackStock         bool       `json:"trackStock"`
	StockOnHand        string     `json:"stockOnHand"`
	ReorderPoint       *string    `json:"reorderPoint"`
	Usage30            float64    `json:"usage30"`
	CreatedAt          time.Time  `json:"createdAt"`
}

type servicePage struct {
	Data []serviceItem `json:"data"`
	Page struct {
		HasMore    bool    `json:"hasMore"`
		NextCursor *string `json:"nextCursor"`
	} `json:"page"`
	RequestID string `json:"requestId"`
}

const serviceList = `SELECT id, name, type, sku, description, unit, image_path, preferred_contact_id, cost_price::text, avg_cost::text,
	selling_price::text, taxable, track_stock, stock_on_hand::text, reorder_point::text, usage_30::float8, created_at
	FROM items WHERE workspace_id = $1 AND active AND (created_at, id) < ($2, $3) ORDER BY created_at DESC, id DESC LIMIT $4`

type service struct{ db *pgxpool.Pool }

func serveService(address, url string) {
	db, err := pgxpool.New(context.Background(), url)
	if err == nil {
		s := &service{db}
		mux := http.NewServeMux()
		mux.HandleFunc("GET /v1/items", s.items)
		err = http.ListenAndServe(address, mux)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func (s *service) items(w http.ResponseWriter, r *http.Request) {
	hash := sha256.Sum256([]byte(r.Header.Get("X-API-Key")))
	var workspace uuid.UUID
	if err := s.db.QueryRow(r.Context(), "SELECT workspace_id FROM api_keys WHERE key_hash = $1 AND revoked_at IS NULL", hash[:]).Scan(&workspace); err != nil {
		http.Error(w, "unauthorised", http.StatusUnauthorized)
		return
	}
	limit, err := strconv.Atoi(r.FormValue("limit"))
	if err != nil || limit < 1 || limit > 100 {
		http.Error(w, "bad limit", http.StatusBadRequest)
		return
	}
	at, id := time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), uuid.Max
	if cursor := r.FormValue("cursor"); cursor != "" {
		text, err := base64.RawURLEncoding.DecodeString(cursor)
		left, right, _ := strings.Cut(string(text), " ")
		if err == nil {
			at, err = time.Parse(time.RFC3339Nano, left)
		}
		if err == nil {
			id, err = uuid.Parse(right)
		}
		if err != nil {
			http.Error(w, "bad cursor", http.StatusBadRequest)
			return
		}
	}
	rows, err := s.db.Query(r.Context(), serviceList, workspace, at, id, limit+1)
	var page servicePage
	if err == nil {
		page.Data, err = pgx.CollectRows(rows, pgx.RowToStructByPos[serviceItem])
	}
	if err != nil {
		http.Error(w, "database", http.StatusServiceUnavailable)
		return
	}
	if len(page.Data) > limit {
		page.Data = page.Data[:limit]
		last := page.Data[limit-1]
		next := base64.RawURLEncoding.EncodeToString([]byte(last.CreatedAt.UTC().Format(time.RFC3339Nano) + " " + last.ID.String()))
		page.Page.HasMore, page.Page.NextCursor = true, &next
	}
	page.RequestID = uuid.NewString()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(page)
}

// measureService compares walks of pages that neither side has seen before.
func measureService(ctx context.Context, s *subject, r *report) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	theirs, err := startServer(program, func(address, _ string) []string { return []string{serviceArgument, address, s.url} })
	if err != nil {
		return err
	}
	defer theirs.end()
	var cpu [2]time.Duration
	pages := 0
	for range 3 { // a node that has seen the pages has them: each round has a new one
		ours, err := s.startNode()
		if err != nil {
			return err
		}
		for i, side := range []*server{ours, theirs} {
			walker := side.client(s.key)
			if _, err = walker.walk(ctx, 1); err != nil { // its connections
				break
			}
			var used time.Duration
			var paths []string
			used, err = side.spent(func() (err error) {
				paths, err = walker.walk(ctx, walkedPages/4)
				return err
			})
			cpu[i] += used
			pages += len(paths) * (1 - i)
		}
		ours.end()
		if err != nil {
			return err
		}
	}
	r.ratio("a walk of pages nobody has seen: CPU per page, µs, against net/http, structs and encoding/json", "%.0f", micros(cpu[0], pages), micros(cpu[1], pages), 0.5)
	return nil
}
