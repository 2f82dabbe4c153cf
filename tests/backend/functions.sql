bit_and(i,3)
bit_count(i)
bit_not(i)
bit_or(i,3)
bit_xor(i,3)
bitand(i,3)
bitcount(i)
bitor(i,3)
bitxor(i,3)
i & 3
i | 3
abs(i)
ceil(f)
ceiling(f)
div(i,2)
exp(f)
floor(f)
ln(p)
log10(p)
log1p(p)
log2(p)
mod(i,3)
pi()
pow(f,2)
power(f,2)
round(f)
round(f,1)
sign(f)
sqrt(p)
cbrt(f)
trunc(f)
truncate(f)
trunc(f,1)
acos(p)
acosd(p)
asin(p)
asind(p)
atan(f)
atan2(f,p)
atan2d(f,p)
atand(f)
cos(f)
cosd(f)
cot(f)
cotd(f)
degrees(f)
radians(f)
sin(f)
sind(f)
tan(f)
tand(f)
date('2024-01-05')
date('05/2024/01','%d/%Y/%m')
date_part('year',d)
date_part('isodow',d)
date_part('dow',d)
date_part('week',d)
date_part('epoch',ts)
date_part('millisecond',ts)
date_part('microsecond',ts)
date_part('doy',d)
date_part('quarter',d)
date_part('century',d)
date_part('decade',d)
date_part('millennium',d)
date_part('isoyear',d)
date_part('second',ts)
date_part('hour',tm)
extract(second from ts)
extract(dow from d)
extract(isodow from d)
extract(week from d)
extract(epoch from ts)
extract(millisecond from ts)
extract(nanosecond from ts)
extract(century from d)
extract(time from ts)
extract(isoyear from d)
strftime(ts,'%Y-%m')
strptime('2024-01','%Y-%m')
date_trunc('month',ts)
year(d)
month(d)
day(d)
quarter(d)
week(d)
dayofweek(d)
hour(ts)
timestamp('2024-01-05 10:00:00')
datetime('2024-01-05 10:00:00')
time('10:11:12')
d + interval '1 day'
ts - interval '2 hours'
d + interval '1' day
ts::date
ts::time
d::timestamp
d - d
ts - ts
ts::varchar
date '2024-01-01'
timestamp '2024-01-01 00:00:00'
time '10:00:00'
interval '1 day 2 hours'
bit_length(s)
char_length(s)
character_length(s)
concat(s,'!',i)
concat_ws('-',s,'z')
ends_with(s,'c')
initcap(s)
left(s,2)
left(s,-1)
length(s)
lower(s)
lpad(s,8,'*')
rpad(s,8,'*')
lpad(s,8)
ltrim(s)
ltrim(s,' a')
normalize(s)
normalize(s,NFKD)
octet_length(s)
regexp_like(s,'^a')
regexp_like(s,'^A','i')
replace(s,'X','y')
reverse(s)
right(s,2)
right(s,-1)
rtrim(s)
rtrim(s,'c')
split_part(s,' ',1)
split_part(s,' ',-1)
starts_with(s,'a')
substr(s,2,2)
substr(s,-2,2)
substr(s,0,2)
substr(s,2)
substring(s from 2 for 2)
substring(s from 2)
substring(s,2)
trim(s)
trim(both 'a' from s)
trim(leading 'a' from s)
trim(trailing 'c' from s)
upper(s)
s || 'x'
s || i
s like 'a%'
s not like 'a%'
s ilike 'A%'
s ~ 'X'
s ~* 'x'
s !~ 'X'
s !~* 'x'
s ~~ 'a%'
s !~~ 'a%'
s ~~* 'A%'
s regexp '^a'
s rlike '^a'
s not rlike '^a'
s ^@ 'a'
starts_with(s,'a')
string_to_array(s,' ')
regexp_replace(s,'[a-c]','_')
coalesce(i,0)
greatest(i,2)
greatest(i,f)
least(i,2)
if(b,1,2)
ifnull(i,0)
nullif(i,1)
case when i>0 then 'p' else 'n' end
case i when 1 then 'a' end
i is null
i is not null
i is distinct from 1
i is not distinct from null
i <=> 1
i between 1 and 3
i not between 1 and 3
i between 3 and 1
i in (1,3)
i not in (1,3)
i in (1,null)
i != 1
i <> 1
i = 1
i == 1
not b
i / 2
i % 2
f / 2
i / 2.0
-i
+i
i * f
f % 2
i / 0
i % 0
f / 0
dec / 2
dec * dec
dec % 2
b and null
b or null
b = true
b > false
s > 'b'
d > '2023-08-01'
d between '2020-01-01' and '2023-12-31'
ts > '2023-08-01'
ts = '2023-07-01'
cast(i as double)
cast(f as int)
cast(f as bigint)
cast(f as smallint)
cast(i as tinyint)
cast(1 as tinyint)
cast(1 as utinyint)
cast(1 as uint2)
cast(1 as int1)
cast(1 as uint8)
cast(i as varchar)
cast(i as text)
cast(i as string)
cast(i as char)
cast(f as real)
cast(f as float4)
cast(f as float(24))
cast(f as double precision)
cast(i as decimal(8,1))
cast(f as numeric(8,1))
cast(f as decimal)
cast(b as int)
cast(i as boolean)
cast(s as blob)
cast(s as bytea)
cast(s as varbinary)
cast(d as timestamp)
cast(ts as date)
cast(ts as time)
cast(ts as timestamp(3))
cast(ts as timestamp with time zone)
cast('1' as int)
try_cast(s as int)
i::int8
i::int2
i::int4
cast('2024-01-01' as date)
cast('10:00:00' as time)
cast('2024-01-01 10:00:00' as timestamp)
cast('2024-01-01 10:00:00' as datetime)
cast(i as integer)
array_contains(l,2)
array_get(l,1)
array_get(l,-1)
array_length(l)
array_lower(l)
array_upper(l)
array_mean(l)
array_reverse(l)
array_sum(l)
array_to_string(ls,',')
array_to_string(l,',')
array_unique(l)
l[1]
l[2]
ls[1]
array[1,2]
[1,2]
array_agg(i)
l = [3]
2 = any(l)
r.x
r.y
r -> 'x'
bin = x'6162'
bin > x'00'
b'01'
x'ff'
i::text::int
1e2
0x1f
null
true
-1.5
.5
5.
1.50
avg(f)
avg(i)
corr(i,f)
covar(i,f)
covar_pop(i,f)
covar_samp(i,f)
count(*)
count(i)
count(distinct b)
first(i)
last(i)
max(i)
median(f)
quantile_cont(f,0.5)
quantile_disc(f,0.5)
quantile_cont(f,0.25)
quantile_disc(f,0.3)
min(f)
stddev(f)
stdev(f)
stddev_samp(f)
sum(i)
sum(dec)
sum(b)
variance(f)
var(f)
var_samp(f)
string_agg(s,',')
listagg(s,',')
group_concat(s)
array_agg(i)
array_agg(distinct b order by b)
approx_quantile(f,0.5)
count(distinct s)
max(s)
min(d)
max(ts)
avg(d)
avg(dec)
sum(distinct i)
min(b)
count(*) filter (where b)
sum(i) filter (where i>0)
max(abs(i))
sum(i)/count(*)
string_agg(s,',' order by s)
