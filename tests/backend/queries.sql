SELECT 1 AS x WHERE 1=0
SELECT 1 AS x WHERE NULL
SELECT 1 AS x WHERE 1=1
SELECT count(*) AS c
SELECT count(*) AS c WHERE false
SELECT sum(1) AS c
SELECT (SELECT 1 WHERE false) AS x FROM t
WITH q AS (SELECT 1 AS x WHERE 1=0) SELECT * FROM q
SELECT 1 AS x WHERE false UNION ALL SELECT 2
SELECT 1 AS x WHERE EXISTS (SELECT 1 FROM t WHERE id=1)
SELECT 1 AS x WHERE NOT EXISTS (SELECT 1 FROM t WHERE id=1)
SELECT 1 AS x WHERE NOT EXISTS (SELECT 1 FROM t WHERE id=100)
SELECT 1 AS x WHERE 1 IN (SELECT id FROM t)
SELECT 1 AS x WHERE 100 IN (SELECT id FROM t)
SELECT 1 AS x HAVING false
SELECT 1 AS x HAVING true
SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.id=t.id)
SELECT id FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.id=t.id)
SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE id=100)
SELECT id FROM t WHERE EXISTS (SELECT 1 WHERE false)
SELECT id FROM t WHERE id NOT IN (SELECT id FROM u)
SELECT id FROM t WHERE id NOT IN (SELECT id FROM u WHERE id IS NOT NULL)
SELECT id FROM t WHERE id NOT IN (SELECT id FROM u WHERE false)
SELECT id FROM t WHERE n NOT IN (1, NULL)
SELECT id FROM t WHERE n > ALL (SELECT n FROM u WHERE n < 3)
SELECT id FROM t WHERE n > ANY (SELECT n FROM u)
SELECT id FROM t WHERE n = ANY (SELECT n FROM u)
SELECT id FROM t WHERE (SELECT max(n) FROM u) > n
SELECT id FROM t WHERE n = (SELECT n FROM u WHERE w='q')
SELECT (SELECT max(n) FROM u WHERE u.id=t.id) m, id FROM t
SELECT id, (SELECT count(*) FROM u) c FROM t
SELECT id FROM t ORDER BY id FETCH FIRST 2 ROWS ONLY
SELECT id FROM t ORDER BY id LIMIT 2 OFFSET 1
SELECT id FROM t ORDER BY id OFFSET 4
SELECT id FROM t ORDER BY id LIMIT 0
SELECT id FROM t ORDER BY n NULLS FIRST, id
SELECT id FROM t ORDER BY n NULLS LAST, id
SELECT id FROM t ORDER BY n DESC NULLS LAST, id
SELECT id FROM t ORDER BY n DESC NULLS FIRST, id
SELECT id FROM t ORDER BY n, id
SELECT id FROM t ORDER BY 1 DESC
SELECT id, n FROM t ORDER BY ALL
SELECT n AS id FROM t ORDER BY id NULLS LAST
SELECT g, count(*) c FROM t GROUP BY ALL
SELECT g, count(*) c FROM t GROUP BY 1 ORDER BY 2 DESC, 1
SELECT g, sum(n) c FROM t GROUP BY g HAVING sum(n) > 3
SELECT g, sum(n) FILTER (WHERE b) c FROM t GROUP BY g
SELECT count(*) FILTER (WHERE v > 1) c FROM t
SELECT count(v) FILTER (WHERE v > 1) c FROM t
SELECT count(DISTINCT n) FROM t
SELECT count(DISTINCT g) FILTER (WHERE id > 3) c FROM t
SELECT sum(DISTINCT n) c FROM t
SELECT avg(DISTINCT n) c FROM t
SELECT string_agg(s, ',' ORDER BY id) x FROM t
SELECT string_agg(s, ',' ORDER BY id DESC) x FROM t
SELECT string_agg(DISTINCT g, ',' ORDER BY g) x FROM t
SELECT array_agg(id ORDER BY id DESC) x FROM t
SELECT array_agg(n ORDER BY id) x FROM t
SELECT array_agg(DISTINCT g ORDER BY g) x FROM t
SELECT min(s), max(s) FROM t
SELECT min(b), max(b) FROM t
SELECT sum(v), avg(v), min(v), max(v) FROM t
SELECT median(v) FROM t
SELECT quantile_cont(v, 0.25) FROM t
SELECT corr(id, v), covar_pop(id, v) FROM t
SELECT g, count(*) c FROM t GROUP BY ROLLUP (g)
SELECT g, b, count(*) c FROM t GROUP BY CUBE (g, b)
SELECT g, b, count(*) c FROM t GROUP BY GROUPING SETS ((g), (b), ())
SELECT DISTINCT g FROM t
SELECT DISTINCT ON (g) g, id FROM t ORDER BY g, id
SELECT DISTINCT ON (g) g, id FROM t ORDER BY g NULLS LAST, id DESC
SELECT g, id, row_number() OVER (PARTITION BY g ORDER BY id) r FROM t
SELECT id, rank() OVER (ORDER BY n) r FROM t
SELECT id, sum(n) OVER (ORDER BY id) r FROM t
SELECT id, sum(n) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) r FROM t
SELECT id, sum(n) OVER (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) r FROM t
SELECT id, sum(n) OVER (ORDER BY g) r FROM t
SELECT id, count(*) OVER (ORDER BY n) r FROM t
SELECT id, sum(n) OVER (PARTITION BY g) r FROM t
SELECT id, sum(n) OVER (PARTITION BY g ORDER BY id DESC) r FROM t
SELECT id, sum(n) OVER w r FROM t WINDOW w AS (PARTITION BY g)
SELECT id, sum(n) OVER w r FROM t WINDOW w AS (PARTITION BY g ORDER BY id)
SELECT id, lag(n) OVER (ORDER BY id) r FROM t
SELECT id, lag(n, 2, -1) OVER (ORDER BY id) r FROM t
SELECT id, lead(n) OVER (PARTITION BY g ORDER BY id) r FROM t
SELECT id, first_value(n) OVER (PARTITION BY g ORDER BY id) r FROM t
SELECT id, last_value(n) OVER (PARTITION BY g ORDER BY id) r FROM t
SELECT id, last_value(n) OVER (ORDER BY id) r FROM t
SELECT id, nth_value(n, 2) OVER (ORDER BY id) r FROM t
SELECT id, ntile(3) OVER (ORDER BY id) r FROM t
SELECT id, percent_rank() OVER (ORDER BY id) r FROM t
SELECT id, cume_dist() OVER (ORDER BY id) r FROM t
SELECT id, avg(v) OVER (PARTITION BY g ORDER BY id) r FROM t
SELECT id, min(n) OVER (ORDER BY id) r, max(n) OVER (ORDER BY id) r2 FROM t
SELECT id, max(n) OVER (ORDER BY n) r FROM t
SELECT id, sum(n) FILTER (WHERE b) OVER (PARTITION BY g) r FROM t
SELECT id, row_number() OVER (ORDER BY n) r FROM t WHERE n IS NOT NULL AND id <> 5
SELECT id FROM t QUALIFY row_number() OVER (PARTITION BY g ORDER BY id) = 1
SELECT id, rank() OVER (PARTITION BY g ORDER BY n DESC NULLS LAST) r FROM t
SELECT id, count(n) OVER (PARTITION BY b) r FROM t
SELECT t.id, w FROM t JOIN u ON t.id=u.id
SELECT t.id, w FROM t LEFT JOIN u ON t.id=u.id
SELECT t.id, w FROM t RIGHT JOIN u ON t.id=u.id
SELECT t.id, u.id uid, w FROM t FULL JOIN u ON t.id=u.id
SELECT id, w FROM t LEFT JOIN u USING (id)
SELECT t.id, w FROM t NATURAL JOIN u
SELECT id, w, n FROM t NATURAL JOIN u
SELECT t.id, w FROM t CROSS JOIN u
SELECT t.id, w FROM t, u WHERE t.id=u.id
SELECT t.id, w FROM t, u
SELECT id FROM t SEMI JOIN u ON t.id=u.id
SELECT id FROM t ANTI JOIN u ON t.id=u.id
SELECT id FROM t ANTI JOIN u USING (id)
SELECT t.id, u.id uid FROM t JOIN u ON t.id < u.id
SELECT t.id, u.id uid FROM t JOIN u ON t.id = u.id AND t.n > u.n
SELECT t.id, u.id uid FROM t LEFT JOIN u ON t.id = u.id AND t.n > u.n
SELECT t.id, u.id uid FROM t LEFT JOIN u ON t.id = u.id AND u.w='q'
SELECT t.id, u.id uid FROM t LEFT JOIN u ON t.id = u.id AND t.g='a'
SELECT t.id, u.id uid FROM t LEFT JOIN u ON t.id < u.id
SELECT t.id, u.id uid FROM t LEFT JOIN u ON t.id = u.id OR t.n = u.n
SELECT t.id, u.id uid FROM t JOIN u ON t.id = u.id OR t.n = u.n
SELECT t.id, u.id uid FROM t JOIN u ON t.id + 1 = u.id
SELECT t.id, u.id uid FROM t JOIN u ON t.id IS NOT DISTINCT FROM u.id
SELECT t.id, u.id uid FROM t JOIN u ON t.n = u.n
SELECT t.id, u.id uid FROM t FULL JOIN u ON t.n = u.n
SELECT t.id, x.id xid FROM t JOIN t x ON t.n = x.n
SELECT t.id FROM t JOIN u ON true
SELECT t.id FROM t LEFT JOIN u ON false
SELECT t.id FROM t JOIN u ON t.id=u.id WHERE u.n > 2 AND t.n IS NULL
SELECT t.id, u.w FROM t LEFT JOIN u ON t.id=u.id WHERE u.w IS NULL
SELECT t.id, x FROM t, UNNEST([1,2]) AS q(x)
SELECT unnest([1,2,3]) AS x
SELECT id FROM t UNION SELECT id FROM u
SELECT id FROM t UNION ALL SELECT id FROM u
SELECT id FROM t INTERSECT SELECT id FROM u
SELECT id FROM t EXCEPT SELECT id FROM u
SELECT id FROM t INTERSECT ALL SELECT id FROM u
SELECT id FROM u EXCEPT ALL SELECT id FROM t
SELECT id FROM u EXCEPT ALL SELECT 3
SELECT n FROM t EXCEPT SELECT n FROM u
SELECT n FROM t INTERSECT SELECT n FROM u
SELECT id, n FROM t UNION BY NAME SELECT n, id FROM u
SELECT id, n FROM t UNION ALL BY NAME SELECT id FROM u
SELECT id FROM t UNION SELECT id FROM u ORDER BY id NULLS LAST LIMIT 3
SELECT id FROM t UNION ALL SELECT id FROM u INTERSECT SELECT 1
(SELECT id FROM t ORDER BY id LIMIT 2) UNION ALL (SELECT id FROM u ORDER BY id LIMIT 1)
SELECT id FROM t WHERE id < 3 UNION ALL SELECT id FROM t WHERE id > 4 ORDER BY id DESC
SELECT * FROM (VALUES (1,'a'),(2,'b')) v(x,y)
SELECT * EXCLUDE (v,s,d,ts,b) FROM t
SELECT * EXCEPT (v,s,d,ts,b) FROM t
SELECT * REPLACE (id+1 AS id) FROM u
SELECT * RENAME (id AS k) FROM u
SELECT t.* FROM t JOIN u ON t.id=u.id
SELECT u.*, t.id FROM t JOIN u ON t.id=u.id
SELECT COLUMNS('i.*') FROM t
SELECT s FROM t WHERE s LIKE 'x\_y' ESCAPE '\'
SELECT s FROM t WHERE s LIKE 'x_y'
SELECT s FROM t WHERE s LIKE 'x!%y' ESCAPE '!'
SELECT s FROM t WHERE s LIKE 'x\%y'
SELECT s FROM t WHERE s ILIKE 'AB'
SELECT s FROM t WHERE s NOT ILIKE 'AB'
SELECT s FROM t WHERE s ~ 'x.y'
SELECT s FROM t WHERE s !~ 'x.y'
SELECT id FROM t WHERE n BETWEEN 2 AND 3
SELECT id FROM t WHERE n NOT BETWEEN 2 AND 3
SELECT id FROM t WHERE n BETWEEN NULL AND 3
SELECT id FROM t WHERE b
SELECT id FROM t WHERE NOT b
SELECT id FROM t WHERE b IS TRUE
SELECT id FROM t WHERE b IS NOT FALSE
SELECT id FROM t WHERE b IS UNKNOWN
SELECT id FROM t WHERE n IS NULL = b
SELECT id FROM t WHERE NOT n = 2 AND b
SELECT id, CASE n WHEN 2 THEN 'two' WHEN NULL THEN 'null' ELSE 'other' END x FROM t
SELECT id, CASE WHEN n > 2 THEN 1 END x FROM t
SELECT id, coalesce(n, -1) x, nullif(n, 2) y, ifnull(n, 0) z FROM t
SELECT id, greatest(id, n) x, least(id, n) y FROM t
SELECT id, if(b, 1, 2) x FROM t
SELECT id, n / 0 x FROM t
SELECT 7 / 2 x, 1 / 3 y
SELECT 1 + 2 * 3 - 4 x
SELECT abs(-3) a, ceil(1.2) b, floor(-1.2) c, round(2.5) d, round(-2.5) e, sign(-3) f, sqrt(4.0) g
SELECT round(1.255, 2) a, round(3.5) b, trunc(-1.7) c
SELECT mod(-7, 3) a, pow(2, 3) b, exp(1.0) c, ln(2.0) d, log10(100.0) e, log2(8.0) f
SELECT id, upper(s) a, lower(s) b, length(s) c, reverse(s) d FROM t
SELECT substring('hello' FROM 2 FOR 3) a
SELECT left('hello', -2) a, right('hello', -2) b
SELECT trim('  a ') a, ltrim('  a ') b, rtrim(' a  ') c, trim(BOTH 'x' FROM 'xax') d
SELECT replace('aba','a','b') a, position('b' IN 'abc') b, strpos('abc','z') c, concat('a', NULL, 'b') d, 'a' || NULL e, concat_ws(',', 'a', NULL, 'b') f
SELECT id, d + INTERVAL 1 DAY x FROM t
SELECT id, d + 1 x FROM t
SELECT id, ts + INTERVAL '1 month' x FROM t
SELECT id, ts - INTERVAL '1 hour' x FROM t
SELECT id, extract(year FROM d) x, extract(month FROM ts) y, extract(dow FROM d) z, extract(doy FROM d) w, extract(week FROM d) a, extract(quarter FROM d) b, extract(isodow FROM d) c, extract(epoch FROM ts) e FROM t
SELECT id, year(d) a, month(d) b, day(d) c, hour(ts) e, minute(ts) f, second(ts) g FROM t
SELECT id, date_trunc('month', ts) x, date_trunc('day', d) y FROM t
SELECT id, date_part('year', d) x FROM t
SELECT id, strftime(d, '%Y/%m') x FROM t
SELECT id FROM t WHERE d = '2024-01-01'
SELECT id FROM t WHERE d > DATE '2024-01-01'
SELECT id FROM t WHERE ts >= TIMESTAMP '2024-01-31 23:59:59'
SELECT id FROM t WHERE ts BETWEEN '2024-01-01' AND '2024-02-01'
SELECT id FROM t WHERE ts = d
SELECT id FROM t WHERE CAST(ts AS DATE) = d
SELECT TRY_CAST('x' AS INT) a
SELECT CAST(n AS VARCHAR) x, CAST(v AS VARCHAR) y, CAST(b AS VARCHAR) z, CAST(d AS VARCHAR) w FROM t
SELECT CAST('2024-01-05' AS DATE) a, CAST('2024-01-05 10:00:00' AS TIMESTAMP) b
SELECT '12'::INT + 1 x
SELECT 0.1 + 0.2 x, 1e3 y, .5 z
SELECT 1 = 1.0 a, 'a' = 'A' b, NULL = NULL c, NULL IS NULL d
WITH a AS (SELECT id FROM t), b AS (SELECT id FROM a WHERE id > 2) SELECT * FROM b
WITH t AS (SELECT 9 AS id) SELECT id FROM t
WITH a(x) AS (SELECT id FROM t) SELECT x FROM a
WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM r WHERE n < 5) SELECT n FROM r
SELECT x.id FROM (SELECT id FROM t WHERE id > 2) x WHERE x.id < 5
SELECT x.a FROM (SELECT id FROM t) x(a)
SELECT count(*) FROM (SELECT DISTINCT g FROM t)
SELECT * FROM (SELECT id FROM t ORDER BY id DESC LIMIT 2) ORDER BY id
SELECT a.id FROM t AS a WHERE a.id = (SELECT min(id) FROM t b WHERE b.g = a.g)
SELECT g, (SELECT max(n) FROM u) m, count(*) c FROM t GROUP BY g
SELECT g, n, sum(v) x FROM t GROUP BY g, n
SELECT upper(g) k, count(*) c FROM t GROUP BY upper(g)
SELECT upper(g) k, count(*) c FROM t GROUP BY k
SELECT id % 2 k, sum(id) x FROM t GROUP BY id % 2 ORDER BY k
SELECT id % 2 AS id, count(*) c FROM t GROUP BY id
SELECT id % 2 AS id, count(*) c FROM t GROUP BY 1
SELECT count(*) c FROM t GROUP BY g
SELECT sum(n) + 1 x, sum(n) * count(*) y FROM t
SELECT g, sum(n) x FROM t GROUP BY g ORDER BY sum(n) DESC NULLS LAST
SELECT g, max(id) - min(id) x FROM t GROUP BY g HAVING count(*) > 1 ORDER BY x
SELECT g FROM t GROUP BY g HAVING g IS NOT NULL
SELECT g, 5 AS k FROM t GROUP BY g
SELECT 5 AS k, count(*) c FROM t WHERE false
SELECT g, count(*) c FROM t WHERE false GROUP BY g
SELECT sum(n) x, count(n) y, max(n) z FROM t WHERE false
SELECT count(*) FROM t WHERE n IS NULL OR v IS NULL
SELECT id FROM t WHERE s = ''
SELECT id FROM t WHERE s <> ''
SELECT id FROM t WHERE s < 'b' AND s >= 'A'
SELECT id FROM t WHERE n IN (2, 3.0)
SELECT id FROM t WHERE v IN (2.5, 10)
SELECT id FROM t WHERE id IN (1, 2) AND NOT id IN (2)
SELECT id FROM t WHERE id IS DISTINCT FROM n
SELECT id FROM t WHERE n == 2
SELECT id FROM t WHERE n != 2
SELECT id FROM t WHERE - id < -4
SELECT id FROM t WHERE 1 = 1 AND (n = 2 OR n = 3) AND NOT (id = 1)
SELECT DISTINCT g, b FROM t ORDER BY g NULLS FIRST, b NULLS FIRST
SELECT ALL g FROM t
SELECT DISTINCT count(*) OVER (PARTITION BY g) c FROM t
SELECT id FROM t ORDER BY v * -1 NULLS LAST, id
SELECT id FROM t ORDER BY length(s) NULLS LAST, id
SELECT id AS x FROM t ORDER BY x + 1 DESC
SELECT g, count(*) FROM t GROUP BY g ORDER BY count(*), g
SELECT id FROM t ORDER BY (SELECT 1), id
FROM t SELECT id
SELECT id FROM t WHERE id = 1 LIMIT ALL
SELECT "id" FROM "t"
SELECT t."id" FROM "t" AS t
SELECT id id2, id AS "a b" FROM t
SELECT x'41' b
SELECT current_date = current_date x
SELECT true AND NULL a, false AND NULL b, true OR NULL c, NOT NULL d
SELECT CASE WHEN NULL THEN 1 ELSE 2 END x
SELECT count(*) c, count(1) d, count(NULL) e, count(n) f FROM t
SELECT g, array_agg(id ORDER BY id) a FROM t GROUP BY g
SELECT id, sum(count(*)) OVER () x FROM t GROUP BY id
SELECT g, sum(sum(n)) OVER (ORDER BY g) x FROM t GROUP BY g
SELECT g, rank() OVER (ORDER BY count(*) DESC) x FROM t GROUP BY g
SELECT id, sum(n) OVER (ORDER BY b) x FROM t
SELECT id, row_number() OVER () > 0 x FROM t
SELECT id, avg(n) OVER (ORDER BY id ROWS 2 PRECEDING) x FROM t
SELECT id, sum(n) OVER (ORDER BY id ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) x FROM t
SELECT id AS n, n AS id FROM t ORDER BY t.n NULLS LAST, t.id
SELECT id AS v, v AS id FROM t ORDER BY t.v NULLS LAST, t.id LIMIT 2
SELECT id AS n FROM t ORDER BY -t.n NULLS LAST, t.id
SELECT id AS k FROM t ORDER BY -k
SELECT u.n FROM t JOIN u ON t.id = u.id ORDER BY t.n DESC NULLS LAST, u.w
SELECT t.id, u.id, u.n FROM t JOIN u ON t.id = u.id ORDER BY -u.n
SELECT *, id AS n FROM t ORDER BY t.n NULLS LAST, t.id
SELECT sum(n) AS g FROM t GROUP BY t.g ORDER BY t.g NULLS FIRST
SELECT * FROM (SELECT id AS v FROM t ORDER BY t.v NULLS LAST, t.id LIMIT 2) q ORDER BY 1
WITH q AS (SELECT id AS v FROM t ORDER BY t.v NULLS LAST, t.id LIMIT 2) SELECT * FROM q ORDER BY v
SELECT id FROM t ORDER BY CASE WHEN g = 'b' THEN 0 ELSE 1 END, id DESC
SELECT id FROM t ORDER BY CASE g WHEN 'b' THEN -1 WHEN 'a' THEN 10000000000 END NULLS LAST, id
SELECT 1, 1
SELECT 1, 1 UNION ALL SELECT 2, 2
SELECT id, id FROM t
SELECT t.id, id, id FROM t ORDER BY id
SELECT n + 1, n + 1, max(n) OVER (), 'x', 'x' FROM t
SELECT *, g FROM t
SELECT t.*, u.id FROM t JOIN u ON t.id = u.id
SELECT count(*), count(*) FROM t
SELECT g, g, sum(n) FROM t GROUP BY g
SELECT id, id FROM t EXCEPT SELECT n, n FROM t
SELECT log(2, 8) a, log(100) b, log(id, 8) c, log(2, id + 1) d, log(id) e, log10(id) f, ln(id) g, log2(id) h FROM t WHERE id > 1
SELECT log(10, v) a FROM t WHERE log(10, v) > 0 ORDER BY log(2, v)
