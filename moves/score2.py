import sys
exec(open('score.py').read().split("bad=[]")[0])
def last(p):
    parts=p[:-3].split('/')
    if parts[-1] in('mod','lib','main','__init__'): parts=parts[:-1]
    return parts[-1]
# human-like score: type token match, method token match, crate-agnostic
def cand(name):
    out=[]
    ty,_,me=name.rpartition('::') if '::' in name else name.rpartition('.')
    tt,mt=toks(ty),toks(me)
    for q in paths:
        d=W[q]; l=toks(last(q))
        s=0
        s+=sum(idf(t)*d.get(t,0) for t in set(mt))
        s+=1.6*sum(idf(t)*d.get(t,0) for t in set(tt))
        s-=0.3*sum(idf(t) for t in l if t not in mt and t not in tt)
        out.append((s,q))
    out.sort(reverse=True); return out
res=collections.defaultdict(list)
tot=collections.Counter()
for n,p,doc,sig in fs:
    tot[p]+=1
    c=cand(n); own=[s for s,q in c if q==p][0]
    better=[q for s,q in c if s>own+0.01]
    ties=[q for s,q in c if abs(s-own)<=0.01 and q!=p]
    if len(better)>0: res[p].append((n,len(better),len(ties),better[0]))
print(sum(len(v) for v in res.values()), len(fs), 'uniform', sum(1-len(res[p])/tot[p] for p in tot)/len(tot))
for p in sorted(res): 
    for n,b,t,q in res[p]: print(f"{p}\t{n}\t{b}\t{q}")
