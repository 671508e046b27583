import sys,re,math,collections
sys.argv=[sys.argv[0],sys.argv[1],'1']
import importlib.util,io,contextlib
src=open('draw.py').read().split('# shuffle files')[0]
with contextlib.redirect_stdout(io.StringIO()): exec(src)
def stem(w):
    for s in ('ings','ing','ies','es','ed','s','ers','er','ions','ion'):
        if w.endswith(s) and len(w)-len(s)>=4: return w[:-len(s)]
    return w
def toks(s):
    s=re.sub(r'([a-z0-9])([A-Z])',r'\1_\2',s)
    return [stem(w.lower()) for w in re.split(r'[^A-Za-z0-9]+',s) if w]
files=sorted(set(f[1] for f in fs))
tree=[p for p in open('/dev/null')] or src_list if False else None
allfiles=[p for p in globals()['files'] ]
import subprocess
paths=[p for p in subprocess.run(['git','-C',str(root),'ls-files'],capture_output=True,text=True).stdout.split() if (p.endswith('.rs') or p.endswith('.py')) and not is_test(p)]
W={}
df=collections.Counter()
for p in paths:
    parts=p[:-3].split('/')
    if parts[-1] in('mod','lib','main','__init__'): parts=parts[:-1]
    d={}
    for depth,part in enumerate(reversed(parts)):
        for t in toks(part):
            d[t]=max(d.get(t,0),[1,0.55,0.35,0.25,0.2,0.2,0.2][depth])
    W[p]=d
    for t in d: df[t]+=1
N=len(paths)
idf=lambda t: math.log((N+1)/(df[t]+0.5)) if t in df else 0
def score(name,p):
    nt=set(toks(name)); d=W[p]
    s=sum(idf(t)*d[t] for t in nt if t in d)
    last=p[:-3].split('/'); last=last[-1] if last[-1] not in('mod','lib','main','__init__') else last[-2]
    miss=sum(idf(t) for t in toks(last) if t not in nt)
    return s-0.25*miss
bad=[]
for n,p,doc,sig in fs:
    r=sorted(((score(n,q),q) for q in paths),reverse=True)
    rank=[q for _,q in r].index(p)
    if rank>0: bad.append((rank,r[0][0]-score(n,p),n,p,r[0][1]))
if __name__=='__main__':
    print(len(fs),len(bad),len([b for b in bad if b[0]>2]))
    by=collections.Counter(b[3] for b in bad); tot=collections.Counter(f[1] for f in fs)
    print('expected uniform-by-file', sum(1-by[p]/tot[p] for p in tot)/len(tot))
    for b in sorted(bad,key=lambda b:b[3]): print(b[0],round(b[1],1),b[2],b[3],'|',b[4])
