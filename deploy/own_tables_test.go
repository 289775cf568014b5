package deploy_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"listedge/internal/list/listtest"
	"listedge/internal/sandbox/sandboxtest"
)

// The page about tables of one's own, as somebody follows it: its commands, its description and its SQL one after the
// other. What it shows as their output is what they print.
func TestThePageOfOwnTables(t *testing.T) {
	t.Parallel()
	public, admin := "127.0.0.1:"+freePort(), "127.0.0.1:"+freePort()
	page := strings.ReplaceAll(string(must1(os.ReadFile("../docs/OWN_TABLES.md"))), "127.0.0.1:8080", public)
	home, postgres := t.TempDir(), sandboxtest.Postgres(t)
	must(os.Symlink(must1(program()), filepath.Join(home, "listedge")))
	url := postgres.URL("postgres")
	cmd := exec.CommandContext(t.Context(), "/bin/bash", "-c", tutorialShell)
	cmd.Dir = home
	cmd.Env = append(os.Environ(), "PATH="+home+":"+postgres.Bin+":"+os.Getenv("PATH"), "TMPDIR="+home, "LISTEDGE_DATABASE_URL="+url,
		"LISTEDGE_LISTEN="+public, "LISTEDGE_ADMIN_LISTEN="+admin, "LISTEDGE_DRAIN=0s",
		"LISTEDGE_FRESHNESS_BOUND=10s") // so large that a busy machine does not end it
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	run := startBlocks(t, cmd, home)
	filled := false
	for _, b := range pageBlocks(page) {
		b.follow(t, run)
		if !filled && strings.Contains(b.commands, "CREATE TABLE shop.products") {
			execute(t, url, listtest.ShapeOf("products").Rows(1, 3000)+";"+listtest.ShapeOf("people").Rows(1, 3000))
			filled = true
		}
	}
	t.Run("the README's description", func(t *testing.T) {
		must(os.WriteFile(filepath.Join(home, "readme.yaml"), []byte(find(t, "../README.md", "(?ms)^```yaml\n(.*?)^```$")[0]), 0o644))
		if said := run("listedge lists show --lists readme.yaml"); !strings.Contains(said, "/v1/products of shop.products") {
			t.Error(said)
		}
	})
	testCards(t, url, "http://"+public, strings.TrimSpace(run(`echo "$KEY"`)))
	testChangedTables(t, url, "http://"+public, strings.TrimSpace(run(`echo "$KEY"`)), run)
}

// pageBlocks returns the blocks of the page: those of SQL and the first description as commands of a shell, too.
func pageBlocks(text string) (blocks []tutorialBlock) {
	for _, m := range regexp.MustCompile("(?ms)^( *)```(sh|text|sql|yaml)\n(.*?)^ *```$").FindAllStringSubmatch(text, -1) {
		body := strings.TrimPrefix(strings.ReplaceAll("\n"+m[3], "\n"+m[1], "\n"), "\n")
		switch m[2] {
		case "sh":
			blocks = append(blocks, tutorialBlock{commands: body})
		case "sql":
			blocks = append(blocks, tutorialBlock{commands: "psql -qAt -v ON_ERROR_STOP=1 \"$LISTEDGE_DATABASE_URL\" >sql.out <<'SQL'\n" + body + "SQL\n"})
		case "yaml":
			blocks = append(blocks, tutorialBlock{commands: "cat >lists.yaml <<'END'\n" + body + "END\n"})
		default:
			blocks[len(blocks)-1].shown = body
		}
	}
	return blocks
}

// Ten minutes are six commands and a short description.
func TestOwnTablesTakeFewCommands(t *testing.T) {
	_, section, _ := strings.Cut(string(must1(os.ReadFile("../docs/OWN_TABLES.md"))), "\n## Ten minutes\n")
	section, _, _ = strings.Cut(section, "\n## ")
	commands, lines := 0, 0
	for _, b := range pageBlocks(section) {
		if strings.HasPrefix(b.commands, "cat >lists.yaml") {
			lines = strings.Count(b.commands, "\n") - 2
		} else {
			commands += len(regexp.MustCompile(`(?m)^([A-Z]+=\$\()?listedge `).FindAllString(b.commands, -1))
		}
	}
	if commands != 6 || lines == 0 || lines > 40 {
		t.Errorf("%d commands, and a description of %d lines", commands, lines)
	}
}

// execute runs SQL on a connection of its own.
func execute(t *testing.T, url, sql string) {
	t.Helper()
	conn := must1(pgx.Connect(t.Context(), url))
	defer conn.Close(context.WithoutCancel(t.Context()))
	_, err := conn.PgConn().Exec(t.Context(), sql).ReadAll()
	if err != nil {
		t.Errorf("%s: %v", sql, err)
	}
}

// testCards finds that the table which triggers keep is equal to its view, whoever writes what at once.
func testCards(t *testing.T, url, node, key string) {
	conn := must1(pgx.Connect(t.Context(), url))
	defer conn.Close(context.WithoutCancel(t.Context()))
	drifted := func(t *testing.T) {
		t.Helper()
		var cards, drift int
		must(conn.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM shop.cards), (SELECT count(*) FROM shop.cards_drifted)").Scan(&cards, &drift))
		if cards == 0 || drift > 0 {
			t.Errorf("%d of %d cards have drifted", drift, cards)
		}
	}
	drifted(t)
	for _, sql := range []string{
		"INSERT INTO shop.stock SELECT id, 'shelf', 3 FROM shop.products",
		"UPDATE shop.stock SET product_id = 4, place = 'other' WHERE product_id = 5",
		"UPDATE shop.products SET account_id = 7 WHERE id < 20",
		"UPDATE shop.products SET deleted_at = now() WHERE id < 10",
		"DELETE FROM shop.products WHERE id < 30",
		"INSERT INTO shop.products (account_id, title, price_cents, kind) VALUES (1, 'New', 1, 'goods')",
		"TRUNCATE shop.stock",
	} {
		t.Run(sql, func(t *testing.T) {
			execute(t, url, sql)
			drifted(t)
		})
	}
	t.Run("two writers of one card wait for each other", func(t *testing.T) {
		first := must1(conn.Begin(t.Context()))
		must1(first.Exec(t.Context(), "INSERT INTO shop.stock VALUES (50, 'a', 1)"))
		second := make(chan struct{})
		go func() {
			defer close(second)
			execute(t, url, "INSERT INTO shop.stock VALUES (50, 'b', 2)")
		}()
		within(t, patience, "the second writer waits", func() bool {
			var waits bool
			must(first.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid)))").Scan(&waits))
			return waits
		})
		must(first.Commit(t.Context()))
		<-second
		drifted(t)
	})
	t.Run("many writers", func(t *testing.T) {
		var writers sync.WaitGroup
		for range 4 {
			writers.Go(func() { writeStock(t, url) })
		}
		writers.Wait()
		drifted(t)
	})
	t.Run("a snapshot of its own is refused", func(t *testing.T) {
		_, err := conn.Exec(t.Context(), "BEGIN ISOLATION LEVEL REPEATABLE READ; DELETE FROM shop.stock; COMMIT", pgx.QueryExecModeSimpleProtocol)
		must1(conn.Exec(t.Context(), "ROLLBACK"))
		if err == nil || !strings.Contains(err.Error(), "READ COMMITTED") {
			t.Error(err)
		}
	})
	t.Run("a node shows the card", func(t *testing.T) {
		execute(t, url, "INSERT INTO shop.products (account_id, title, price_cents, kind) VALUES (1, 'Newest', 1, 'goods')")
		execute(t, url, "INSERT INTO shop.stock SELECT max(id), 'a', 77 FROM shop.products")
		within(t, patience, "it is shown", func() bool {
			status, body, err := get(node+"/v1/cards?limit=1", key)
			return err == nil && status == http.StatusOK && strings.Contains(string(body), `"title":"Newest","amount":77,`)
		})
	})
}

// writeStock changes the stock of random products, in transactions of two statements.
func writeStock(t *testing.T, url string) {
	conn := must1(pgx.Connect(t.Context(), url))
	defer conn.Close(context.WithoutCancel(t.Context()))
	for range 40 {
		sql := "BEGIN;"
		for range 2 {
			sql += fmt.Sprintf("INSERT INTO shop.stock VALUES (%d, '%c', 1) ON CONFLICT (product_id, place) DO UPDATE SET amount = stock.amount + 1;",
				60+rand.N(3), 'a'+rand.N(3))
		}
		_, err := conn.PgConn().Exec(t.Context(), sql+"COMMIT").ReadAll()
		var refused *pgconn.PgError
		if errors.As(err, &refused) && refused.Code == "40P01" { // two transactions met in another order
			must1(conn.Exec(t.Context(), "ROLLBACK"))
		} else if err != nil {
			t.Error(err)
		}
	}
}

// testChangedTables finds what the page says of a column that is renamed, and of one that gets another type.
func testChangedTables(t *testing.T, url, node, key string, run func(string) string) {
	answers := func(path string) string {
		r := must1(http.NewRequest(http.MethodGet, node+"/v1/"+path, nil))
		r.Header.Set("X-API-Key", key)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return err.Error()
		}
		answer.Body.Close()
		return fmt.Sprint(answer.StatusCode, " ", answer.Header.Get("Cache-Status"))
	}
	for what, c := range map[string]struct{ change, back, starts, unknown string }{
		"another type": {"ALTER TABLE shop.products ALTER price_cents TYPE bigint", "ALTER TABLE shop.products ALTER price_cents TYPE int", "it fits\n",
			"products?limit=4"},
		"renamed": {"ALTER TABLE shop.products RENAME price_cents TO cents", "ALTER TABLE shop.products RENAME cents TO price_cents", "2\n", "products?limit=5"},
	} {
		t.Run(what, func(t *testing.T) {
			within(t, patience, "a page is known", func() bool { return strings.HasPrefix(answers("products?limit=3"), "200 ") })
			execute(t, url, c.change)
			within(t, patience, "the known page is stale", func() bool { return strings.Contains(answers("products?limit=3"), "stale-if-error") })
			within(t, patience, "others are not served", func() bool { return strings.HasPrefix(answers(c.unknown), "503 ") })
			within(t, patience, "another list is", func() bool {
				a := answers("people?limit=3")
				return strings.HasPrefix(a, "200 ") && !strings.Contains(a, "stale-if-error")
			})
			starts := run("listedge lists show >shown.out 2>&1 && echo it fits || echo $?; tail -1 shown.out >&2")
			if starts != c.starts {
				t.Errorf("a node that starts: %s", starts)
			}
			execute(t, url, c.back)
			within(t, patience, "all is well again", func() bool { return strings.HasPrefix(answers(c.unknown), "200 ") })
		})
	}
}
